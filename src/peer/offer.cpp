#include "peer/offer.hpp"

#include <cstring>
#include <limits>

#include <fmt/format.h>

#include "base/try.hpp"

namespace sidestep::peer {
namespace {

// Both ends are programs of one machine, so numbers keep the machine's order of bytes. Everything behind the
// version may change with it.
constexpr std::uint32_t mark = 0x50445353;  // "SSDP"
constexpr std::uint16_t version = 2;
constexpr std::size_t longest_scheme = 32;
constexpr std::size_t longest_handle = 1024;
constexpr int highest_index = 999'999;

template <typename Number>
void put(std::string& message, Number number) {
    message.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

void put_text(std::string& message, const std::string& text) {
    put(message, static_cast<std::uint16_t>(text.size()));
    message += text;
}

// Takes fields off the front; after the first that is not there everything is zero.
class Reader {
public:
    explicit Reader(std::string_view message) : rest_(message) {}

    template <typename Number>
    Number number() {
        Number number{};
        if (rest_.size() < sizeof(number)) return fail<Number>();
        std::memcpy(&number, rest_.data(), sizeof(number));
        rest_.remove_prefix(sizeof(number));
        return number;
    }
    std::string text(std::size_t max) {
        const auto size = number<std::uint16_t>();
        if (size > max || size > rest_.size()) return fail<std::string>();
        std::string text(rest_.substr(0, size));
        rest_.remove_prefix(size);
        return text;
    }
    // Everything was there, and nothing is left.
    bool exact() const { return !failed_ && rest_.empty(); }

private:
    template <typename Value>
    Value fail() {
        failed_ = true;
        rest_ = {};
        return {};
    }
    std::string_view rest_;
    bool failed_ = false;
};

Error senseless(const char* what) {
    return Error{ErrorCode::io_error,
                 fmt::format("what the publisher says makes no sense: {}", what),
                 "published memory",
                 {}};
}

void put_head(std::string& message) {
    put(message, mark);
    put(message, version);
}

Result<void> check_head(Reader& reader) {
    if (reader.number<std::uint32_t>() != mark) return senseless("it does not begin as it should");
    if (const auto said = reader.number<std::uint16_t>(); said != version)
        return Error{ErrorCode::unsupported,
                     fmt::format("the publisher speaks version {} of the protocol, this library version {}",
                                 said, version),
                     "published memory", "use the same version of the library on both sides"};
    return {};
}

// Null where every field fits the others.
const char* flaw_of(const MemoryOffer& offer) {
    const Place& place = offer.place;
    if (!place.is_host() && !place.is_gpu()) return "it is neither host nor GPU memory";
    if (place.index() < (place.is_gpu() ? 0 : -1) || place.index() > highest_index)
        return "its place has a wrong number";
    if (offer.memory == MemoryKind::automatic || offer.memory == MemoryKind::storage)
        return "its kind is wrong";
    if (offer.size == 0 || offer.size == std::numeric_limits<Bytes>::max()) return "its size is wrong";
    if (offer.offset > std::numeric_limits<Bytes>::max() - offer.size)
        return "its end lies past the last address";
    if (offer.scheme.empty() || offer.scheme.size() > longest_scheme) return "its scheme has a wrong length";
    if (offer.handle.size() > longest_handle) return "its handle is too long";
    return nullptr;
}

}  // namespace

Result<std::string> to_message(const MemoryOffer& offer) {
    if (const char* flaw = flaw_of(offer))
        return Error{
            ErrorCode::internal, fmt::format("memory cannot be described: {}", flaw), "published memory", {}};
    std::string message;
    put_head(message);
    put(message, static_cast<std::uint8_t>(offer.place.is_gpu()));
    put(message, static_cast<std::uint8_t>(offer.memory));
    put(message, static_cast<std::int32_t>(offer.place.index()));
    put(message, offer.size);
    put(message, offer.offset);
    put(message, offer.identity);
    put(message, offer.address);
    put(message, offer.publication);
    put(message, offer.publisher);
    put(message, static_cast<std::uint8_t>(offer.has_descriptor));
    put_text(message, offer.scheme);
    put_text(message, offer.handle);
    return message;
}

Result<MemoryOffer> parse_offer(std::string_view message) {
    Reader reader(message);
    SIDESTEP_CHECK(check_head(reader));
    MemoryOffer offer;
    const auto on_gpu = reader.number<std::uint8_t>();
    const auto memory = reader.number<std::uint8_t>();
    const auto index = reader.number<std::int32_t>();
    offer.size = reader.number<std::uint64_t>();
    offer.offset = reader.number<std::uint64_t>();
    offer.identity = reader.number<std::uint64_t>();
    offer.address = reader.number<std::uint64_t>();
    offer.publication = reader.number<std::uint64_t>();
    offer.publisher = reader.number<PublisherId>();
    const auto has_descriptor = reader.number<std::uint8_t>();
    offer.scheme = reader.text(longest_scheme);
    offer.handle = reader.text(longest_handle);
    if (!reader.exact()) return senseless("it is too short or too long");
    if (on_gpu > 1 || has_descriptor > 1) return senseless("a flag is neither 0 nor 1");
    if (memory > static_cast<std::uint8_t>(MemoryKind::storage)) return senseless("its kind is unknown");
    offer.place = on_gpu != 0 ? Place::gpu(index) : Place::host(index);
    offer.memory = static_cast<MemoryKind>(memory);
    offer.has_descriptor = has_descriptor != 0;
    if (const char* flaw = flaw_of(offer)) return senseless(flaw);
    return offer;
}

std::string to_message(const Message& message) {
    std::string bytes;
    put_head(bytes);
    put(bytes, static_cast<std::uint8_t>(message.word));
    put(bytes, message.number);
    put_text(bytes, message.text);
    return bytes;
}

Result<Message> parse_message(std::string_view bytes) {
    Reader reader(bytes);
    SIDESTEP_CHECK(check_head(reader));
    Message message;
    const auto word = reader.number<std::uint8_t>();
    message.number = reader.number<std::uint64_t>();
    message.text = reader.text(longest_message);
    if (!reader.exact()) return senseless("it is too short or too long");
    if (word > static_cast<std::uint8_t>(Word::withdrawn)) return senseless("its word is unknown");
    message.word = static_cast<Word>(word);
    return message;
}

}  // namespace sidestep::peer
