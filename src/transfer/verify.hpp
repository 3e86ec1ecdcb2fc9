// Reads both ends of a finished copy and compares their hashes, block by block.
#pragma once

#include <memory>
#include <vector>

#include "transfer/ends.hpp"
#include "transfer/lane.hpp"

namespace sidestep::transfer {

// Driven by step(), like a LaneRunner. Must be drained before it is destroyed.
class Verifier {
public:
    // `written`, where it is not null, is the target's registration with the backend that wrote it: a file
    // that has no name yet can only be read through it.
    static Result<std::unique_ptr<Verifier>> create(backend::PieceOwner& owner, Plans& plans,
                                                    StagingPool& pool, const Ends& ends,
                                                    backend::Registration* written);

    // Reads on. Fails with ErrorCode::mismatch, naming the offset, once a block differs.
    Result<bool> step();
    void stop();
    // Nothing is in flight.
    bool idle() const;
    // Every block of both ends was read and compared.
    bool finished() const { return compared_ == blocks_.size(); }

private:
    // XXH3 of one block at either end.
    struct Block {
        std::uint64_t hash[2] = {0, 0};
        bool seen[2] = {false, false};
    };
    struct Side {
        std::shared_ptr<const ReadyPlan> plan;
        std::unique_ptr<backend::Registration> attached;
        std::unique_ptr<LaneRunner> lane;
        Cursor cursor;
    };

    explicit Verifier(const Ends& ends);
    Result<void> open(backend::PieceOwner& owner, int side, Plans& plans, StagingPool& pool,
                      const Buffer& buffer, const route::End& end, backend::Registration* written);
    Result<void> see(int side, Bytes offset, const void* data, Bytes size);

    Bytes bytes_ = 0;
    Bytes phase_ = 0;  // of both cursors: blocks begin where those of the file do
    std::vector<Block> blocks_;
    std::size_t compared_ = 0;
    Side sides_[2];
};

}  // namespace sidestep::transfer
