#include "peer/offer.hpp"

#include <limits>

#include <fmt/format.h>

#include "base/message.hpp"
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

using Length = std::uint16_t;  // of a text

Error senseless(const char* what) {
    return Error{ErrorCode::io_error,
                 fmt::format("what the publisher says makes no sense: {}", what),
                 "published memory",
                 {}};
}

base::MessageWriter begin() {
    base::MessageWriter writer;
    writer.put(mark).put(version);
    return writer;
}

Result<void> check_head(base::MessageReader& reader) {
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
    base::MessageWriter message = begin();
    message.put(static_cast<std::uint8_t>(offer.place.is_gpu()));
    message.put(static_cast<std::uint8_t>(offer.memory));
    message.put(static_cast<std::int32_t>(offer.place.index()));
    message.put(offer.size);
    message.put(offer.offset);
    message.put(offer.identity);
    message.put(offer.address);
    message.put(offer.publication);
    message.put(offer.publisher);
    message.put(static_cast<std::uint8_t>(offer.has_descriptor));
    message.put_text<Length>(offer.scheme);
    message.put_text<Length>(offer.handle);
    return message.take();
}

Result<MemoryOffer> parse_offer(std::string_view message) {
    base::MessageReader reader(message);
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
    offer.scheme = reader.text<Length>(longest_scheme);
    offer.handle = reader.text<Length>(longest_handle);
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
    base::MessageWriter bytes = begin();
    bytes.put(static_cast<std::uint8_t>(message.word));
    bytes.put(message.number);
    bytes.put_text<Length>(message.text);
    return bytes.take();
}

Result<Message> parse_message(std::string_view bytes) {
    base::MessageReader reader(bytes);
    SIDESTEP_CHECK(check_head(reader));
    Message message;
    const auto word = reader.number<std::uint8_t>();
    message.number = reader.number<std::uint64_t>();
    message.text = reader.text<Length>(longest_message);
    if (!reader.exact()) return senseless("it is too short or too long");
    if (word > static_cast<std::uint8_t>(Word::withdrawn)) return senseless("its word is unknown");
    message.word = static_cast<Word>(word);
    return message;
}

}  // namespace sidestep::peer
