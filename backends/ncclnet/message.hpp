// What the two ends of a rail say to each other over the socket.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include <sidestep/result.hpp>

#include "backend/nearness.hpp"
#include "backend/network.hpp"
#include "driver/nccl_net.hpp"

namespace sidestep::backends::ncclnet {

// The first that each end says: by which plugin, and where it listens.
struct Greeting {
    std::string plugin;  // what it calls itself; longer than most_name is cut
    driver::NcclNetHandle handle{};
    backend::GpuDistances gpus{};  // from its device

    bool operator==(const Greeting&) const = default;
};

constexpr std::size_t most_name = 48;
constexpr std::size_t greeting_bytes =
    8 + most_name + driver::nccl_net::handle_bytes + backend::most_told_gpus;

// io_error: the other machine sent `what`.
Error no_sense(std::string what);

std::array<unsigned char, greeting_bytes> to_bytes(const Greeting& greeting);
// io_error for bytes that are no greeting, or of another version.
Result<Greeting> parse_greeting(const unsigned char* bytes);
// io_error where the ends use different plugins, which cannot speak to each other.
Result<void> check_same_plugin(const Greeting& mine, const Greeting& theirs);

// All that follows.
struct Message {
    enum class Kind : std::uint8_t {
        frame = 1,  // a frame; its bytes follow
        offer,      // a frame whose bytes go by the plugin, once they are asked for
        here,       // the answer to an offer: the plugin waits for them
        nowhere,    // the answer to an offer: nobody wants them
    };
    Kind kind = Kind::frame;
    std::uint16_t offer = 0;  // its number, given anew to each
    backend::Frame frame{};   // of the first two

    bool has_frame() const { return kind == Kind::frame || kind == Kind::offer; }
    // How many bytes follow.
    Bytes follows() const { return kind == Kind::frame && frame.has_payload() ? frame.size : 0; }
    bool operator==(const Message&) const = default;
};

// Frames with more bytes are offered.
constexpr Bytes most_small = Bytes{16} << 10;
// That an end has open. One that is over for its sender may not be so for the receiver yet.
constexpr std::size_t most_offers = 32, most_offers_in = 2 * most_offers;
constexpr std::size_t message_bytes = 8 + backend::frame_bytes;

std::array<unsigned char, message_bytes> to_bytes(const Message& message);
// io_error for bytes that are none, or one that no end may send.
Result<Message> parse_message(const unsigned char* bytes);

}  // namespace sidestep::backends::ncclnet
