// What publishers and importers tell each other; every field is checked.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include <sidestep/memory_kind.hpp>
#include <sidestep/place.hpp>
#include <sidestep/units.hpp>

namespace sidestep::peer {

// Tells one publisher from any other, of this process or another, now or before.
using PublisherId = std::array<unsigned char, 16>;

struct MemoryOffer {
    PublisherId publisher{};
    std::string scheme;  // at most 32 bytes
    std::string handle;  // at most 1 KiB
    Place place;         // host or gpu, of this machine
    MemoryKind memory = MemoryKind::device;
    Bytes size = 0;                 // above 0; of what is published, which starts `offset` bytes
    Bytes offset = 0;               // into what the handle opens
    std::uint64_t identity = 0;     // of the memory: another one where an address was given out again
    std::uint64_t address = 0;      // of the first published byte, in the publisher's own address space
    std::uint64_t publication = 0;  // of this publisher: never given to anything else again
    bool has_descriptor = false;    // one comes with the message
};

// Bytes that hold any offer.
constexpr std::size_t longest_offer = 2048;

// The message; fields that do not fit are an error.
Result<std::string> to_message(const MemoryOffer& offer);

// ErrorCode::unsupported for a message of another version, io_error for one that makes no sense.
Result<MemoryOffer> parse_offer(std::string_view message);

// A publisher answers whoever connects, and each question, in order; it says `withdrawn` at any time, to those who were
// offered the memory.
enum class Word : std::uint8_t {
    welcome,    // to whoever connects: the text is file_id() of the publisher's socket
    refused,    // the connection, or what was asked: the text says why
    ask,        // all that importers say: what has the name in the text?
    offered,    // the text is a MemoryOffer
    absent,     // the name is not, or no longer, this publisher's
    withdrawn,  // `number` is the publication
};

struct Message {
    Word word = Word::absent;
    std::uint64_t number = 0;  // of the question, from 1 in each connection; 0: of none
    std::string text;
};

// Bytes that hold any question, and any message.
constexpr std::size_t longest_question = 128;
constexpr std::size_t longest_message = longest_offer + 64;

std::string to_message(const Message& message);
// As parse_offer(). The beginning, by which versions are told apart, is that of an offer in all versions.
Result<Message> parse_message(std::string_view bytes);

}  // namespace sidestep::peer
