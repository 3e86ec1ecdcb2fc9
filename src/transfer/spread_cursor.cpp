#include "transfer/spread_cursor.hpp"

#include <algorithm>
#include <utility>

namespace sidestep::transfer {

SpreadCursor::SpreadCursor(const std::vector<SpreadFile>& files, Bytes chunk)
    : files_(&files), chunk_(chunk) {
    std::vector<std::pair<Bytes, std::size_t>> sizes;
    for (std::size_t file = 0; file < files.size(); ++file)
        if (!files[file].ranges.empty()) sizes.emplace_back(files[file].bytes(), file);
    // The largest, and of equal ones the first, come last.
    std::stable_sort(sizes.begin(), sizes.end(), [](const auto& a, const auto& b) {
        return a.first != b.first ? a.first < b.first : a.second > b.second;
    });
    for (const auto& [bytes, file] : sizes) waiting_.push_back(file);
    activate();
}

void SpreadCursor::activate() {
    while (active_.size() < files_at_once && !waiting_.empty()) {
        const std::size_t file = waiting_.back();
        waiting_.pop_back();
        active_.push_back({file, 0, (*files_)[file].ranges.front().begin});
    }
}

Cell SpreadCursor::take() {
    Position& at = active_[turn_];
    const auto& ranges = (*files_)[at.file].ranges;
    Cell cell{at.file, at.offset / chunk_ * chunk_, {}};
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
    if (at.range == ranges.size())
        active_.erase(active_.begin() + static_cast<std::ptrdiff_t>(turn_));
    else
        ++turn_;
    activate();
    if (turn_ >= active_.size()) turn_ = 0;
    return cell;
}

}  // namespace sidestep::transfer
