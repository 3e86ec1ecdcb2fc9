#include "backends/ncclnet/message.hpp"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "base/try.hpp"

namespace sidestep::backends::ncclnet {
namespace {

constexpr unsigned char magic[] = {'S', 'S', 'N', 'N'};
constexpr unsigned char version = 2;

bool all_zero(const unsigned char* from, std::size_t count) {
    return std::all_of(from, from + count, [](unsigned char byte) { return byte == 0; });
}

}  // namespace

Error no_sense(std::string what) {
    return Error{ErrorCode::io_error, "the other machine sent " + std::move(what), "ncclnet", {}};
}

std::array<unsigned char, greeting_bytes> to_bytes(const Greeting& greeting) {
    std::array<unsigned char, greeting_bytes> bytes{};
    std::copy(std::begin(magic), std::end(magic), bytes.begin());
    bytes[4] = version;
    std::memcpy(bytes.data() + 8, greeting.plugin.data(), std::min(greeting.plugin.size(), most_name));
    auto* const at = std::copy(greeting.handle.begin(), greeting.handle.end(), bytes.begin() + 8 + most_name);
    std::copy(greeting.gpus.begin(), greeting.gpus.end(), at);
    return bytes;
}

Result<Greeting> parse_greeting(const unsigned char* bytes) {
    if (!std::equal(std::begin(magic), std::end(magic), bytes)) return no_sense("no greeting of this engine");
    if (bytes[4] != version) {
        Error error = no_sense(fmt::format("a greeting of version {} instead of {}", bytes[4], version));
        error.hint = "use the same version of sidestep on both machines";
        return error;
    }
    if (!all_zero(bytes + 5, 3)) return no_sense("a greeting with bytes that mean nothing");
    Greeting greeting;
    const unsigned char* const name = bytes + 8;
    greeting.plugin.assign(name, std::find(name, name + most_name, 0));
    if (!all_zero(name + greeting.plugin.size(), most_name - greeting.plugin.size()))
        return no_sense("a greeting whose name has no end");
    const unsigned char* const gpus = bytes + greeting_bytes - greeting.gpus.size();
    std::copy(name + most_name, gpus, greeting.handle.begin());
    std::copy(gpus, bytes + greeting_bytes, greeting.gpus.begin());
    if (std::ranges::max(greeting.gpus) > backend::longest_distance)
        return no_sense("a greeting with a GPU farther away than any is");
    return greeting;
}

Result<void> check_same_plugin(const Greeting& mine, const Greeting& theirs) {
    if (mine.plugin.substr(0, most_name) == theirs.plugin) return {};
    std::string name = theirs.plugin;
    for (char& letter : name)
        if (letter < ' ' || letter > '~') letter = '?';
    return Error{ErrorCode::io_error,
                 fmt::format("the network plugin here is {}, the other machine's is {}", mine.plugin, name),
                 "ncclnet", "load the same plugin on both machines (SIDESTEP_NCCL_NET)"};
}

std::array<unsigned char, message_bytes> to_bytes(const Message& message) {
    std::array<unsigned char, message_bytes> bytes{};
    bytes[0] = static_cast<unsigned char>(message.kind);
    bytes[2] = static_cast<unsigned char>(message.offer & 0xff);
    bytes[3] = static_cast<unsigned char>(message.offer >> 8);
    if (!message.has_frame()) return bytes;
    const auto frame = backend::to_bytes(message.frame);
    std::copy(frame.begin(), frame.end(), bytes.begin() + 8);
    return bytes;
}

Result<Message> parse_message(const unsigned char* bytes) {
    Message message;
    message.kind = static_cast<Message::Kind>(bytes[0]);
    message.offer = static_cast<std::uint16_t>(bytes[2] | bytes[3] << 8);
    const bool known = message.kind >= Message::Kind::frame && message.kind <= Message::Kind::nowhere;
    if (!known || bytes[1] != 0 || !all_zero(bytes + 4, 4)) return no_sense("what is no message");
    if (!message.has_frame()) {
        if (!all_zero(bytes + 8, backend::frame_bytes)) return no_sense("an answer with a frame");
        return message;
    }
    SIDESTEP_TRY(message.frame, backend::parse_frame(bytes + 8));
    if (message.kind == Message::Kind::offer) {
        if (!message.frame.has_payload() || message.frame.size == 0) return no_sense("an offer of nothing");
    } else if (message.offer != 0 || message.follows() > most_small) {
        return no_sense("a frame that should have been offered");
    }
    return message;
}

}  // namespace sidestep::backends::ncclnet
