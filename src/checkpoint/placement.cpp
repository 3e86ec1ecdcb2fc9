#include "checkpoint/placement.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace sidestep::checkpoint {
namespace {

using transfer::FileRange;
using transfer::Run;

constexpr Bytes joined_gap = Bytes{64} << 10;

// Appends a run, as part of the one before (but none older than `first`) where both continue it.
void append(std::vector<Run>& runs, std::size_t first, const Run& run) {
    if (runs.size() > first) {
        Run& last = runs.back();
        if (last.memory == run.memory && last.file_offset + last.size == run.file_offset &&
            last.memory_offset + last.size == run.memory_offset) {
            last.size += run.size;
            return;
        }
    }
    runs.push_back(run);
}

// The bytes [range) of a cut tensor that begins at `begin` of the file and at `memory` of each place.
void append_parts(const Cut& cut, Bytes begin, Bytes memory, FileRange range, std::vector<Run>& runs,
                  std::size_t first) {
    for (Bytes at = range.begin; at < range.end;) {
        const Bytes row = (at - begin) / cut.row;
        const Bytes within = (at - begin) % cut.row;
        const std::size_t part = cut.part_at(within);
        const Bytes part_begin = cut.begin(part);
        const Bytes part_end = cut.begin(part + 1);
        const Bytes size = std::min(part_end - within, range.end - at);
        append(runs, first,
               {at, size, static_cast<std::uint32_t>(part),
                memory + row * (part_end - part_begin) + (within - part_begin)});
        at += size;
    }
}

}  // namespace

LoadPlacement::LoadPlacement(std::shared_ptr<const std::vector<TensorInfo>> tensors, LayoutPlan plan,
                             const std::vector<std::size_t>& files)
    : tensors_(std::move(tensors)), plan_(std::move(plan)) {
    for (std::size_t i = 0; i < tensors_->size(); ++i)
        if ((*tensors_)[i].bytes > 0) filled_.push_back(i);
    for (const std::size_t file : files) {
        const auto before = [this](std::size_t tensor, std::size_t number) {
            return (*tensors_)[tensor].file < number;
        };
        const auto first = std::lower_bound(filled_.begin(), filled_.end(), file, before);
        const auto end = std::lower_bound(first, filled_.end(), file + 1, before);
        spans_.push_back({static_cast<std::size_t>(first - filled_.begin()),
                          static_cast<std::size_t>(end - filled_.begin())});
    }
}

std::size_t LoadPlacement::first_after(std::size_t file, Bytes offset) const {
    const auto begin = filled_.begin();
    const auto found = std::partition_point(
        begin + static_cast<std::ptrdiff_t>(spans_[file].first),
        begin + static_cast<std::ptrdiff_t>(spans_[file].end), [this, offset](std::size_t tensor) {
            return (*tensors_)[tensor].offset + (*tensors_)[tensor].bytes <= offset;
        });
    return static_cast<std::size_t>(found - begin);
}

void LoadPlacement::runs(std::size_t file, FileRange range, std::vector<Run>& runs) const {
    const std::size_t first = runs.size();
    for (std::size_t i = first_after(file, range.begin); i < spans_[file].end; ++i) {
        const TensorInfo& tensor = filled(i);
        if (tensor.offset >= range.end) break;
        const FileRange part{std::max(range.begin, tensor.offset),
                             std::min(range.end, tensor.offset + tensor.bytes)};
        if (part.begin >= part.end) continue;
        const LayoutPlan::Slot& slot = plan_.slots[filled_[i]];
        if (const Cut* const cut = plan_.cut(filled_[i])) {
            append_parts(*cut, tensor.offset, slot.offset, part, runs, first);
            continue;
        }
        static_assert(LayoutPlan::everywhere == Run::every_memory);
        append(runs, first,
               {part.begin, part.end - part.begin, slot.place, slot.offset + (part.begin - tensor.offset)});
    }
}

std::uint32_t LoadPlacement::memory_at(std::size_t file, Bytes offset) const {
    const std::size_t i = first_after(file, offset);
    if (i == spans_[file].end || plan_.cut(filled_[i])) return Run::every_memory;
    return plan_.slots[filled_[i]].place;
}

std::string LoadPlacement::name_of(std::size_t file, Bytes offset) const {
    const std::size_t i = first_after(file, offset);
    if (i < spans_[file].end && filled(i).offset <= offset) return fmt::format("tensor {}", filled(i).name);
    return "bytes of no tensor";
}

void SavePlacement::runs(std::size_t file, FileRange range, std::vector<Run>& runs) const {
    const std::vector<Piece>& pieces = files_[file];
    auto piece = std::partition_point(pieces.begin(), pieces.end(), [&](const Piece& candidate) {
        return candidate.offset + candidate.size <= range.begin;
    });
    for (; piece != pieces.end() && piece->offset < range.end; ++piece) {
        const Bytes begin = std::max(range.begin, piece->offset);
        const Bytes end = std::min(range.end, piece->offset + piece->size);
        if (begin < end)
            runs.push_back(
                {begin, end - begin, piece->memory, piece->memory_offset + (begin - piece->offset)});
    }
}

std::string SavePlacement::name_of(std::size_t file, Bytes offset) const {
    for (const Piece& piece : files_[file])
        if (offset >= piece.offset && offset - piece.offset < piece.size) return piece.name;
    return "bytes of no tensor";
}

std::vector<std::vector<FileRange>> ranges_of(const std::vector<TensorInfo>& tensors,
                                              const std::vector<CheckpointFile>& files, Bytes block) {
    std::vector<std::vector<FileRange>> all(files.size());
    const auto add = [&](std::size_t file, FileRange range) {
        if (block > 0) {
            range.begin = range.begin / block * block;
            if (const Bytes past = range.end % block; past != 0)
                range.end = std::min(range.end - past + block, files[file].size);
        }
        std::vector<FileRange>& ranges = all[file];
        if (!ranges.empty() && range.begin < ranges.back().end + joined_gap)
            ranges.back().end = std::max(ranges.back().end, range.end);
        else
            ranges.push_back(range);
    };
    for (const TensorInfo& tensor : tensors) {
        if (tensor.bytes == 0) continue;
        // What the header says of the tensors is compared too, even where only the last of them is wanted.
        if (block > 0 && all[tensor.file].empty()) add(tensor.file, {0, files[tensor.file].data_begin});
        add(tensor.file, {tensor.offset, tensor.offset + tensor.bytes});
    }
    return all;
}

}  // namespace sidestep::checkpoint
