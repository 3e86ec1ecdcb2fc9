// The order in which chunks of many files are moved. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>
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
    SpreadCursor(const std::vector<SpreadFile>& files, Bytes chunk, const Placement* placement = nullptr)
        : files_(&files), placement_(placement), chunk_(chunk) {
        std::vector<std::pair<Bytes, std::size_t>> sizes;
        // The largest, and of equal ones the first, come last.
        for (std::size_t file = files.size(); file-- > 0;)
            if (!files[file].ranges.empty()) sizes.emplace_back(files[file].bytes(), file);
        std::ranges::stable_sort(sizes, {}, [](const auto& one) { return one.first; });
        for (const auto& [bytes, file] : sizes) waiting_.push_back(file);
        activate();
    }

    bool empty() const { return active_.empty(); }
    // The file that take() turns to next, and some of those that it comes to after that, `most` in all. Only while not empty().
    std::vector<std::size_t> next_files(std::size_t most) const {
        std::vector<std::size_t> next;
        for (std::size_t i = 0; i < active_.size() && next.size() < most; ++i)
            next.push_back(active_[(turn_ + i) % active_.size()].file);
        for (std::size_t i = waiting_.size(); i > 0 && next.size() < most;) next.push_back(waiting_[--i]);
        return next;
    }
    Cell take() {
        Active& active = active_[turn_];
        // Of which the largest part is left, so that all end together.
        const auto track = std::ranges::max_element(active.tracks, [](const Track& a, const Track& b) {
            return a.left * b.cells < b.left * a.cells;
        });
        Stretch& stretch = track->stretches[track->next];
        Cell cell = cell_at(active.file, stretch.at);
        if (--stretch.cells == 0) ++track->next;
        if (--track->left == 0) active.tracks.erase(track);
        if (active.tracks.empty())
            active_.erase(active_.begin() + static_cast<std::ptrdiff_t>(turn_));
        else
            ++turn_;
        activate();
        if (turn_ >= active_.size()) turn_ = 0;
        return cell;
    }

private:
    struct Position {
        std::size_t range = 0;  // the first that is not taken whole
        Bytes offset = 0;       // in it: the first byte that is not taken
    };
    // Cells that follow one another.
    struct Stretch {
        Position at;
        std::size_t cells = 0;
    };
    // What one memory gets of a file; `next` is the stretch to take from.
    struct Track {
        std::vector<Stretch> stretches;
        std::size_t next = 0, cells = 0, left = 0;
    };
    struct Active {
        std::size_t file = 0;
        std::vector<Track> tracks;  // none empty
    };

    void activate() {
        while (active_.size() < files_at_once && !waiting_.empty()) {
            const std::size_t file = waiting_.back();
            waiting_.pop_back();
            active_.push_back({file, tracks_of(file)});
        }
    }
    // One for each memory that the middle byte of some cell is for.
    std::vector<Track> tracks_of(std::size_t file) const {
        const auto& ranges = (*files_)[file].ranges;
        Position at{0, ranges.front().begin};
        std::map<std::uint32_t, Track> tracks;
        const Track* before = nullptr;
        while (at.range < ranges.size()) {
            const Position begin = at;
            const Cell cell = cell_at(file, at);
            const FileRange& part = cell.parts[cell.parts.size() / 2];
            const Bytes middle = part.begin + (part.end - part.begin) / 2;
            const std::uint32_t memory =
                placement_ == nullptr ? Run::every_memory : placement_->memory_at(file, middle);
            Track& track = tracks[memory];
            if (before != &track) track.stretches.push_back({begin, 0});
            ++track.stretches.back().cells;
            track.left = ++track.cells;
            before = &track;
        }
        std::vector<Track> found;
        for (auto& [memory, track] : tracks) found.push_back(std::move(track));
        return found;
    }
    // The cell of the byte at `at`, which then is the first one after it.
    Cell cell_at(std::size_t file, Position& at) const {
        const auto& ranges = (*files_)[file].ranges;
        Cell cell{file, at.offset / chunk_ * chunk_, {}};
        while (at.range < ranges.size()) {
            const FileRange& range = ranges[at.range];
            const Bytes from = std::max(at.offset, range.begin);
            if (from - cell.begin >= chunk_) break;
            const Bytes to = std::min(range.end - cell.begin, chunk_) + cell.begin;
            cell.parts.push_back({from, to});
            at.offset = to;
            if (to < range.end) break;
            ++at.range;
            if (at.range < ranges.size()) at.offset = ranges[at.range].begin;
        }
        return cell;
    }

    const std::vector<SpreadFile>* files_ = nullptr;
    const Placement* placement_ = nullptr;
    Bytes chunk_ = 1;
    std::vector<std::size_t> waiting_;  // the next one last
    std::vector<Active> active_;
    std::size_t turn_ = 0;
};

}  // namespace sidestep::transfer
