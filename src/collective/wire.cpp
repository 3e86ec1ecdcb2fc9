#include "collective/wire.hpp"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "base/try.hpp"

namespace sidestep::collective {
namespace {

constexpr std::uint32_t version = 0x53474306;  // "SGC" and a number

class Writer {
public:
    template <typename Number>
    Writer& put(Number number) {
        bytes_.append(reinterpret_cast<const char*>(&number), sizeof(number));
        return *this;
    }
    Writer& put_text(std::string_view text) {
        put(static_cast<std::uint32_t>(text.size()));
        bytes_.append(text);
        return *this;
    }
    std::string take() { return std::move(bytes_); }

private:
    std::string bytes_;
};

class Reader {
public:
    explicit Reader(std::string_view bytes) : bytes_(bytes) {}

    template <typename Number>
    bool get(Number& number) {
        if (bytes_.size() < sizeof(number)) return false;
        std::memcpy(&number, bytes_.data(), sizeof(number));
        bytes_.remove_prefix(sizeof(number));
        return true;
    }
    bool get_text(std::string& text, std::size_t max) {
        std::uint32_t size = 0;
        if (!get(size) || size > max || size > bytes_.size()) return false;
        text.assign(bytes_.substr(0, size));
        bytes_.remove_prefix(size);
        return true;
    }
    // For people: what moves a cursor or breaks a line does so in no message of this rank.
    bool get_printed(std::string& text, std::size_t max) {
        if (!get_text(text, max)) return false;
        for (char& one : text)
            if (static_cast<unsigned char>(one) < 0x20 || one == 0x7f) one = '?';
        return true;
    }
    bool ended() const { return bytes_.empty(); }

private:
    std::string_view bytes_;
};

Error senseless(const char* what) {
    return Error{ErrorCode::io_error, fmt::format("another rank's {} makes no sense", what), "group", {}};
}

}  // namespace

std::string to_bytes(const Message& message) {
    Writer writer;
    writer.put(version).put(message.word).put(message.slot).put(message.number);
    writer.put(static_cast<std::uint32_t>(message.code));
    writer.put_text(std::string_view(message.text).substr(0, longest_text)).put_text(message.blob);
    return writer.take();
}

Result<Message> parse_message(std::string_view bytes) {
    Reader reader(bytes);
    std::uint32_t found = 0;
    if (!reader.get(found) || (found & ~0xffu) != (version & ~0xffu)) return senseless("message");
    if (found != version)
        return Error{ErrorCode::unsupported,
                     fmt::format("another rank speaks version {} of the protocol, this one {}", found & 0xff,
                                 version & 0xff),
                     "group", "use the same version of Sidestep in all processes of the job"};
    Message message;
    std::uint32_t code = 0;
    if (!reader.get(message.word) || !reader.get(message.slot) || !reader.get(message.number) ||
        !reader.get(code) || !reader.get_printed(message.text, longest_text) ||
        !reader.get_text(message.blob, longest_blob) || !reader.ended())
        return senseless("message");
    if (message.word < Word::hello || message.word > Word::forgotten ||
        code > static_cast<std::uint32_t>(ErrorCode::internal))
        return senseless("message");
    message.code = static_cast<ErrorCode>(code);
    return message;
}

std::string to_bytes(const Hello& hello) {
    Writer writer;
    writer.put(hello.rank).put(hello.ranks).put(hello.process).put(hello.program);
    writer.put_text(hello.place).put_text(hello.gpu).put_text(hello.figures);
    return writer.take();
}

Result<Hello> parse_hello(std::string_view bytes) {
    Reader reader(bytes);
    Hello hello;
    if (!reader.get(hello.rank) || !reader.get(hello.ranks) || !reader.get(hello.process) ||
        !reader.get(hello.program) || !reader.get_printed(hello.place, 256) ||
        !reader.get_text(hello.gpu, 64) || !reader.get_text(hello.figures, 8192) || !reader.ended())
        return senseless("first message");
    if (hello.ranks == 0 || hello.rank >= hello.ranks) return senseless("first message");
    return hello;
}

}  // namespace sidestep::collective
