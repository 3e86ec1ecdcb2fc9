// What ranks say to each other while they join and after. There is one form of message for everything,
// and every field is checked.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include <sidestep/place.hpp>
#include <sidestep/result.hpp>

namespace sidestep::collective {

enum class Word : std::uint8_t {
    hello = 1,  // blob: a Hello. The first message of each end
    refuse,     // text, code: why the other end cannot join
    arena,      // blob: an offer of the sender's arena, perhaps with a descriptor
    ready,    // all arenas are mapped. text: why some cannot be, empty for none; number: 1 where bytes of the
              // sender's GPU to another one cross PCIe, 2 for each thread block that an operation may take at
              // most; slot: multiprocessors that it has to itself, or 0
    share,    // slot, blob: an offer of memory, perhaps with a descriptor
    shared,   // slot: the receiver's memory is mapped. text: why not, empty where it is
    drop,     // slot: is no longer used
    dropped,  // slot: is no longer mapped
    failed,   // text, code: the group has ended, and why
    exchange,   // number, blob: of an exchange; slot: how manieth call of the sender among these ranks
    withdraw,   // number, text, code: of an exchange that has failed for the sender, and why
    withdrawn,  // number: the sender knows of that
    goodbye,    // number: the sender leaves after so many operations of all
    forgotten,  // the sender has nothing mapped any more of whom said goodbye
};

struct Message {
    Word word = Word::hello;
    std::uint32_t slot = 0;
    std::uint64_t number = 0;
    ErrorCode code{0};
    std::string text = {};
    std::string blob = {};
};

constexpr std::size_t longest_text = 1024;  // longer ones are cut
constexpr std::size_t longest_blob = 16384;
constexpr std::size_t longest_message = 64 + longest_text + longest_blob;

// `message.blob` is not longer than longest_blob.
std::string to_bytes(const Message& message);
// ErrorCode::unsupported for a message of another version, io_error for one that makes no sense.
Result<Message> parse_message(std::string_view bytes);

// Who one is.
struct Hello {
    std::uint32_t rank = 0;
    std::uint32_t ranks = 0;
    std::uint32_t process = 0;
    std::array<std::uint64_t, 2> program{};  // tells this process from any other, also with equal numbers
    std::string place = {};
    std::string gpu = {};      // backend::Seat::gpu_id()
    std::string figures = {};  // rank 0's, for all; empty: the built-in ones
};
std::string to_bytes(const Hello& hello);
Result<Hello> parse_hello(std::string_view bytes);

}  // namespace sidestep::collective
