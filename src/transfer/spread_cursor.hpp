// The order in which chunks of many files are moved. Pure.
#pragma once

#include <cstddef>
#include <vector>

#include "transfer/spread.hpp"

namespace sidestep::transfer {

// One chunk: what is moved of the bytes between two multiples of the chunk size.
struct Cell {
    std::size_t file = 0;
    Bytes begin = 0;               // a multiple of the chunk size
    std::vector<FileRange> parts;  // ascending, within the cell, none empty

    Bytes bytes() const {
        Bytes sum = 0;
        for (const FileRange& part : parts) sum += part.end - part.begin;
        return sum;
    }
};

// The files with the most bytes come first, and a few of them take turns. So their drives, and the locks of files that are
// written, work side by side. Files without ranges have no cells.
//
// If each byte of a file goes to one memory only, the cursor walks several places of the file at once, one for each memory.
// Neighbours in a file often go to the same memory, and this way all links are busy and finish together.
class SpreadCursor {
public:
    static constexpr std::size_t files_at_once = 4;

    SpreadCursor() = default;
    // `files` and `placement` outlive the cursor. `chunk` is above 0. Without a placement each file is walked
    // from its first byte to its last.
    SpreadCursor(const std::vector<SpreadFile>& files, Bytes chunk, const Placement* placement = nullptr);

    bool empty() const { return active_.empty(); }
    // The file that take() turns to next. Only while not empty().
    std::size_t next_file() const { return active_[turn_].file; }
    Cell take();

private:
    struct Position {
        std::size_t range = 0;  // the first that is not taken whole
        Bytes offset = 0;       // in it: the first byte that is not taken
    };
    // What one memory gets of a file: where its cells begin, and how many of them were taken.
    struct Track {
        std::vector<Position> cells;
        std::size_t taken = 0;

        std::size_t left() const { return cells.size() - taken; }
    };
    struct Active {
        std::size_t file = 0;
        std::vector<Track> tracks;  // none empty
    };

    void activate();
    std::vector<Track> tracks_of(std::size_t file) const;
    Cell cell_at(std::size_t file, Position& at) const;

    const std::vector<SpreadFile>* files_ = nullptr;
    const Placement* placement_ = nullptr;
    Bytes chunk_ = 1;
    std::vector<std::size_t> waiting_;  // the next one last
    std::vector<Active> active_;
    std::size_t turn_ = 0;
};

}  // namespace sidestep::transfer
