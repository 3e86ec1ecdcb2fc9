#include "collective/wire.hpp"

#include <fmt/format.h>

#include "base/message.hpp"

namespace sidestep::collective {
namespace {

constexpr std::uint32_t protocol_version = 0x53474308;  // "SGC" and a number

// For people: what moves a cursor or breaks a line does so in no message of this rank.
std::string printed(std::string text) {
    for (char& one : text)
        if (static_cast<unsigned char>(one) < 0x20 || one == 0x7f) one = '?';
    return text;
}

Error senseless(const char* what) {
    return Error{ErrorCode::io_error, fmt::format("another rank's {} makes no sense", what), "group", {}};
}

}  // namespace

std::string to_bytes(const Message& message) {
    base::MessageWriter writer;
    writer.put(protocol_version).put(message.word).put(message.slot).put(message.number);
    writer.put(static_cast<std::uint32_t>(message.code));
    writer.put_text(std::string_view(message.text).substr(0, longest_text)).put_text(message.blob);
    return writer.take();
}

Result<Message> parse_message(std::string_view bytes) {
    base::MessageReader reader(bytes);
    const auto found = reader.number<std::uint32_t>();
    if ((found & ~0xffu) != (protocol_version & ~0xffu)) return senseless("message");
    if (found != protocol_version)
        return Error{ErrorCode::unsupported,
                     fmt::format("another rank speaks version {} of the protocol, this one {}", found & 0xff,
                                 protocol_version & 0xff),
                     "group", "use the same version of Sidestep in all processes of the job"};
    Message message;
    message.word = reader.number<Word>();
    message.slot = reader.number<decltype(message.slot)>();
    message.number = reader.number<decltype(message.number)>();
    const auto code = reader.number<std::uint32_t>();
    message.text = printed(reader.text(longest_text));
    message.blob = reader.text(longest_blob);
    if (!reader.exact() || message.word < Word::hello || message.word > Word::forgotten ||
        code > static_cast<std::uint32_t>(ErrorCode::internal))
        return senseless("message");
    message.code = static_cast<ErrorCode>(code);
    return message;
}

std::string to_bytes(const Hello& hello) {
    base::MessageWriter writer;
    writer.put(hello.rank).put(hello.ranks).put(hello.process).put(hello.program);
    writer.put_text(hello.place).put_text(hello.gpu).put_text(hello.figures);
    return writer.take();
}

Result<Hello> parse_hello(std::string_view bytes) {
    base::MessageReader reader(bytes);
    Hello hello;
    hello.rank = reader.number<decltype(hello.rank)>();
    hello.ranks = reader.number<decltype(hello.ranks)>();
    hello.process = reader.number<decltype(hello.process)>();
    hello.program = reader.number<decltype(hello.program)>();
    hello.place = printed(reader.text(256));
    hello.gpu = reader.text(64);
    hello.figures = reader.text(8192);
    if (!reader.exact() || hello.ranks == 0 || hello.rank >= hello.ranks) return senseless("first message");
    return hello;
}

}  // namespace sidestep::collective
