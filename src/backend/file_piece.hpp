// Pieces between files and memory, for the backends that open files.
#pragma once

#include <string>
#include <utility>

#include <fmt/format.h>

#include "backend/backend.hpp"

namespace sidestep::backend {

// The same by the other way round.
inline Capability reversed(Capability capability) {
    std::swap(capability.from, capability.to);
    std::swap(capability.from_memory, capability.to_memory);
    return capability;
}

// The ends of a piece, as what the backend attached them as.
template <typename File, typename Memory>
struct FilePiece {
    File* file;
    Memory* memory;
    bool write;         // to the file
    Bytes file_offset;  // in the file, not in its buffer
    Bytes memory_offset;
};

// Capability 0 reads files, capability 1 writes them. ErrorCode::unsupported for other engines, ends and streams,
// ErrorCode::invalid_argument for what does not fit the two. `File` says whether it is writable().
template <typename File, typename Memory>
Result<FilePiece<File, Memory>> file_piece(const Piece& piece, std::string_view backend) {
    const bool write = piece.capability == 1;
    const auto refuse = [&](ErrorCode code, std::string why) {
        return Error{code, std::move(why), fmt::format("{} backend", backend), {}};
    };
    auto* const file = dynamic_cast<File*>(write ? piece.to : piece.from);
    auto* const memory = dynamic_cast<Memory*>(write ? piece.from : piece.to);
    if (piece.stream != nullptr || piece.capability > 1 || file == nullptr || memory == nullptr)
        return refuse(
            ErrorCode::unsupported,
            fmt::format("the {} backend cannot copy from {} to {} that way, nor on streams", backend,
                        piece.from->buffer().place().to_string(), piece.to->buffer().place().to_string()));
    if (write && !file->writable())
        return refuse(
            ErrorCode::invalid_argument,
            fmt::format("{} is open for reading, and was to be written", file->buffer().place().to_string()));
    if (auto within = check_within(piece); !within) return within.error();
    return FilePiece<File, Memory>{file, memory, write,
                                   file->buffer().offset() + (write ? piece.to_offset : piece.from_offset),
                                   write ? piece.from_offset : piece.to_offset};
}

}  // namespace sidestep::backend
