#include "transfer/spread_cursor.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace sidestep::transfer {

SpreadCursor::SpreadCursor(const std::vector<SpreadFile>& files, Bytes chunk, const Placement* placement)
    : files_(&files), placement_(placement), chunk_(chunk) {
    std::vector<std::pair<Bytes, std::size_t>> sizes;
    // The largest, and of equal ones the first, come last.
    for (std::size_t file = files.size(); file-- > 0;)
        if (!files[file].ranges.empty()) sizes.emplace_back(files[file].bytes(), file);
    std::ranges::stable_sort(sizes, {}, [](const auto& one) { return one.first; });
    for (const auto& [bytes, file] : sizes) waiting_.push_back(file);
    activate();
}

void SpreadCursor::activate() {
    while (active_.size() < files_at_once && !waiting_.empty()) {
        const std::size_t file = waiting_.back();
        waiting_.pop_back();
        active_.push_back({file, tracks_of(file)});
    }
}

// The cell of the byte at `at`, which then is the first one after it.
Cell SpreadCursor::cell_at(std::size_t file, Position& at) const {
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

// One for each memory that the middle byte of some cell is for.
std::vector<SpreadCursor::Track> SpreadCursor::tracks_of(std::size_t file) const {
    const auto& ranges = (*files_)[file].ranges;
    Position at{0, ranges.front().begin};
    std::map<std::uint32_t, Track> tracks;
    while (at.range < ranges.size()) {
        const Position begin = at;
        const Cell cell = cell_at(file, at);
        const FileRange& part = cell.parts[cell.parts.size() / 2];
        const Bytes middle = part.begin + (part.end - part.begin) / 2;
        const std::uint32_t memory =
            placement_ == nullptr ? Run::every_memory : placement_->memory_at(file, middle);
        tracks[memory].cells.push_back(begin);
    }
    std::vector<Track> found;
    for (auto& [memory, track] : tracks) found.push_back(std::move(track));
    return found;
}

Cell SpreadCursor::take() {
    Active& active = active_[turn_];
    // Of which the largest part is left, so that all end together.
    const auto track = std::ranges::max_element(active.tracks, [](const Track& a, const Track& b) {
        return a.left() * b.cells.size() < b.left() * a.cells.size();
    });
    Position at = track->cells[track->taken++];
    Cell cell = cell_at(active.file, at);
    if (track->left() == 0) active.tracks.erase(track);
    if (active.tracks.empty())
        active_.erase(active_.begin() + static_cast<std::ptrdiff_t>(turn_));
    else
        ++turn_;
    activate();
    if (turn_ >= active_.size()) turn_ = 0;
    return cell;
}

}  // namespace sidestep::transfer
