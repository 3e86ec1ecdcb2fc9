// Reads both ends of a finished copy and compares their hashes, block by block.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "base/try.hpp"
#include "base/xxh3.hpp"
#include "transfer/lane.hpp"
#include "transfer/movement.hpp"

namespace sidestep::transfer {

// Driven by step(), like a LaneRunner. Must be drained before it is destroyed.
class Verifier {
public:
    // `written`, where it is not null, is the target's registration with the backend that wrote it: a file
    // that has no name yet can only be read through it.
    static Result<std::unique_ptr<Verifier>> create(backend::PieceOwner& owner, Machine& machine,
                                                    const Ends& ends, backend::Registration* written) {
        std::unique_ptr<Verifier> verifier(new Verifier(ends));
        SIDESTEP_CHECK(verifier->open(owner, machine, 0, ends.from, ends.from_memory, nullptr));
        SIDESTEP_CHECK(verifier->open(owner, machine, 1, ends.to, ends.to_memory, written));
        return verifier;
    }

    // Reads on. Fails with ErrorCode::mismatch, naming the offset, once a block differs.
    Result<bool> step() {
        bool moved = false;
        for (Side& side : sides_) {
            SIDESTEP_TRY(const bool step_moved, side.lane->step(side.cursor));
            moved |= step_moved;
        }
        return moved;
    }

    void stop() {
        for (Side& side : sides_) side.lane->stop();
    }

    // Nothing is in flight.
    bool idle() const {
        return std::ranges::all_of(sides_, [](const Side& side) { return side.lane->idle(); });
    }

    // Every block of both ends was read and compared.
    bool finished() const { return compared_ == blocks_.size(); }

private:
    static constexpr Bytes block_size = Bytes{4} << 20;
    static constexpr Bytes staging_of_a_side = Bytes{32} << 20;
    // XXH3 of one block at either end.
    using Block = std::array<std::optional<std::uint64_t>, 2>;
    struct Side {
        std::shared_ptr<const ReadyPlan> plan;
        std::unique_ptr<backend::Registration> attached;
        std::unique_ptr<LaneRunner> lane;
        Cursor cursor;
    };

    explicit Verifier(const Ends& ends)
        : bytes_(ends.bytes),
          phase_(phase_of(ends.from, ends.to)),
          blocks_((phase_ + ends.bytes + block_size - 1) / block_size) {}

    Result<void> open(backend::PieceOwner& owner, Machine& machine, int side, const Buffer& buffer,
                      MemoryKind memory, backend::Registration* written) {
        const bool gpu = buffer.place().is_gpu() && buffer.place().node().empty();
        const Ends ends{buffer, {}, memory, gpu ? MemoryKind::pinned : MemoryKind::pageable, bytes_};
        CopyOptions options;
        options.lanes = 1;
        Side& mine = sides_[side];
        SIDESTEP_TRY(mine.plan, machine.plans.get(ends, options, {}));
        mine.cursor = Cursor(bytes_, phase_);

        LaneSetup setup;
        setup.owner = &owner;
        setup.hops = mine.plan->lanes[0];
        setup.chunk = block_size;
        setup.phase = phase_;
        setup.staging = std::min(staging_of_a_side, std::max(bytes_, block_size));
        setup.from = written;
        if (written == nullptr) {
            backend::AttachOptions to_read;
            to_read.expected_size = bytes_;
            SIDESTEP_TRY(mine.attached, setup.hops.front().backend->attach(buffer, to_read));
            setup.from = mine.attached.get();
        }
        setup.sink = [this, side](Bytes offset, const void* data, Bytes size) {
            return see(side, offset, data, size);
        };
        SIDESTEP_TRY(mine.lane, LaneRunner::create(std::move(setup), machine.pool));
        return {};
    }

    Result<void> see(int side, Bytes offset, const void* data, Bytes size) {
        Block& block = blocks_[(phase_ + offset) / block_size];
        block[static_cast<std::size_t>(side)] = base::xxh3(data, size);
        if (!block[0] || !block[1]) return {};
        ++compared_;
        if (block[0] == block[1]) return {};
        return Error{ErrorCode::mismatch,
                     fmt::format("source and target differ in the {} that start at byte {}",
                                 format_bytes(size), offset),
                     "verify",
                     "copy again; if it happens twice, suspect the path: prefer another with --prefer"};
    }

    Bytes bytes_ = 0;
    Bytes phase_ = 0;  // of both cursors: blocks begin where those of the file do
    std::vector<Block> blocks_;
    std::size_t compared_ = 0;
    Side sides_[2];
};

}  // namespace sidestep::transfer
