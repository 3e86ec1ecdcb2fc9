// SRC and TARGET of the command line, from text to bytes.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sidestep/sidestep.hpp>

#include "globals.hpp"

namespace sidestep::cli {

// A part of a file, or of published memory.
struct FileRange {
    Bytes offset = 0;
    Bytes size = 0;
};

// A place as it stands on the command line; a file and published memory may carry a range.
struct Operand {
    Place place;
    std::optional<FileRange> range;
};

// Reads a place. A file place may end in "@OFFSET+SIZE"; the last such suffix counts, and only where both
// parts are sizes that parse_bytes reads, so that file names may hold '@' and '+'. `where` names the
// argument in errors.
Result<Operand> parse_operand(std::string_view text, const char* where);

// The error of a place that Place::parse could not read: where it stood, and what could have been meant.
Error bad_place(std::string_view text, Error error, const char* where);

// What checkpoints are called: PATH, also where it is written as a place is, "file:PATH".
std::vector<std::string> checkpoint_paths(std::vector<std::string> words);

// Bytes a copy between the two moves: a file's or range's own size; --size, the target's range, or
// default_size for a memory source. A file of another machine has a size that only
// that machine knows: Buffer::whole. Published memory has a size that only a copy finds out: Buffer::whole
// where the target is a file, else --size or a range is needed. --size with a file source is refused: its
// size is known.
Result<Bytes> copy_size(const Operand& from, const Operand& to, const CopyFlags& flags);

// A buffer and, where it is memory, its owner.
struct End {
    Buffer buffer;
    Allocation memory;
};

// A fresh allocation of `bytes` bytes for a memory place, or the file or published memory.
Result<End> open_end(const Context& context, const Operand& operand, Bytes bytes);

}  // namespace sidestep::cli
