// Pieces between files and memory, for the backends that open files.
#pragma once

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "backend/backend.hpp"

namespace sidestep::backend {

// An engine that reads files into memory of these kinds; what it reaches, and why, is left to say.
inline Capability reads_files(PlaceKind to, MemorySet memory, Reach reach, std::string engine) {
    Capability read;
    read.from = PlaceKind::file;
    read.to = to;
    read.from_memory = {MemoryKind::storage};
    read.to_memory = memory;
    read.reach = reach;
    read.engine = std::move(engine);
    return read;
}

// The same by the other way round.
inline Capability reversed(Capability capability) {
    std::swap(capability.from, capability.to);
    std::swap(capability.from_memory, capability.to_memory);
    return capability;
}

// Of attach(): memory where this backend does not go.
inline Error cannot_reach(const Buffer& buffer, std::string_view backend) {
    return Error{ErrorCode::unsupported,
                 fmt::format("the {} backend cannot reach {}", backend, buffer.place().to_string()),
                 buffer.to_string(), "stage through host memory"};
}

// The ends of a piece, as what the backend attached them as.
template <typename File, typename Memory>
struct FilePiece {
    File* file;
    Memory* memory;
    bool write;         // to the file
    Bytes file_offset;  // in the file, not in its buffer
    Bytes memory_offset;
    Bytes size;

    char* address() const { return static_cast<char*>(memory->buffer().address()) + memory_offset; }
    FilePiece part(Bytes from, Bytes bytes) const {
        return {file, memory, write, file_offset + from, memory_offset + from, bytes};
    }
    // The whole blocks of the file go by `direct`, and what lies beside them by `around`, where there is any. Stops at the first
    // error.
    template <typename Direct, typename Around>
    Result<void> move(Bytes block, Direct direct, Around around) const {
        const Bytes head = std::min((block - file_offset % block) % block, size);
        const Bytes tail = (size - head) % block;
        const Bytes blocks = size - head - tail;
        Result<void> moved;
        if (head > 0) moved = around(part(0, head));
        if (moved && blocks > 0) moved = direct(part(head, blocks));
        if (moved && tail > 0) moved = around(part(head + blocks, tail));
        return moved;
    }
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
    return FilePiece<File, Memory>{file,
                                   memory,
                                   write,
                                   file->buffer().offset() + (write ? piece.to_offset : piece.from_offset),
                                   write ? piece.from_offset : piece.to_offset,
                                   piece.size};
}

}  // namespace sidestep::backend
