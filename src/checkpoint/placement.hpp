// Which bytes of the files go to which memory: the answers to transfer::Placement for a load and a save.
// Pure.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/layout.hpp"
#include "transfer/spread.hpp"

namespace sidestep::checkpoint {

// Of a load. Finds tensors by binary search and makes runs for the asked range alone, so that a tensor cut
// into millions of strips costs no memory.
class LoadPlacement final : public transfer::Placement {
public:
    // `tensors` as lay_out() took them; `files` the positions in Checkpoint::files() of the spread's files,
    // ascending.
    LoadPlacement(std::shared_ptr<const std::vector<TensorInfo>> tensors, LayoutPlan plan,
                  const std::vector<std::size_t>& files);

    void runs(std::size_t file, transfer::FileRange range, std::vector<transfer::Run>& runs) const override;
    std::uint32_t memory_at(std::size_t file, Bytes offset) const override;
    std::string name_of(std::size_t file, Bytes offset) const override;

    const LayoutPlan& plan() const { return plan_; }

private:
    struct Span {
        std::size_t first = 0;  // those of a file in filled_
        std::size_t end = 0;
    };
    const TensorInfo& filled(std::size_t position) const { return (*tensors_)[filled_[position]]; }
    // Position in filled_ of the first tensor of the file that ends after `offset`, or the span's end.
    std::size_t first_after(std::size_t file, Bytes offset) const;

    const std::shared_ptr<const std::vector<TensorInfo>> tensors_;
    const LayoutPlan plan_;
    // Numbers of the tensors that have bytes. Empty ones may lie within others, and a search by offset would
    // go astray.
    std::vector<std::size_t> filled_;
    std::vector<Span> spans_;  // by file of the spread
};

// Of a save: each piece of a memory lies whole in one file.
class SavePlacement final : public transfer::Placement {
public:
    struct Piece {
        Bytes offset = 0;  // in the file
        Bytes size = 0;
        std::uint32_t memory = 0;
        std::string name;
        Bytes memory_offset = 0;
    };
    // By file, ascending and apart.
    explicit SavePlacement(std::vector<std::vector<Piece>> files) : files_(std::move(files)) {}

    void runs(std::size_t file, transfer::FileRange range, std::vector<transfer::Run>& runs) const override;
    std::string name_of(std::size_t file, Bytes offset) const override;

private:
    const std::vector<std::vector<Piece>> files_;
};

// By file: the ranges that hold tensors, of which none is empty. Ranges less than 64 KiB apart become one,
// since reading on costs less than another request. With `block` above 0, for checksums, they begin and end on
// multiples of it, or where the file ends, and the header of each file that has any is among them.
std::vector<std::vector<transfer::FileRange>> ranges_of(const std::vector<TensorInfo>& tensors,
                                                        const std::vector<CheckpointFile>& files,
                                                        Bytes block);

}  // namespace sidestep::checkpoint
