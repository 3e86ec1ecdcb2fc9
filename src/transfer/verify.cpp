#include "transfer/verify.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "base/try.hpp"
#include "base/xxh3.hpp"

namespace sidestep::transfer {
namespace {

constexpr Bytes block_size = Bytes{4} << 20;
constexpr Bytes staging_of_a_side = Bytes{32} << 20;

}  // namespace

Verifier::Verifier(const Ends& ends)
    : bytes_(ends.bytes),
      phase_(phase_of(ends.from, ends.to)),
      blocks_((phase_ + ends.bytes + block_size - 1) / block_size) {}

Result<std::unique_ptr<Verifier>> Verifier::create(backend::PieceOwner& owner, Plans& plans,
                                                   StagingPool& pool, const Ends& ends,
                                                   backend::Registration* written) {
    std::unique_ptr<Verifier> verifier(new Verifier(ends));
    SIDESTEP_CHECK(verifier->open(owner, 0, plans, pool, ends.from, ends.from_end, nullptr));
    SIDESTEP_CHECK(verifier->open(owner, 1, plans, pool, ends.to, ends.to_end, written));
    return verifier;
}

Result<void> Verifier::open(backend::PieceOwner& owner, int side, Plans& plans, StagingPool& pool,
                            const Buffer& buffer, const route::End& end, backend::Registration* written) {
    route::Request request;
    request.from = end;
    const bool gpu = end.place.is_gpu() && end.place.node().empty();
    request.to = {Place::host(), gpu ? MemoryKind::pinned : MemoryKind::pageable};
    request.bytes = bytes_;
    request.lanes = 1;
    Side& mine = sides_[side];
    SIDESTEP_TRY(mine.plan, plans.get(request));
    mine.cursor = Cursor(bytes_, phase_);

    LaneSetup setup;
    setup.owner = &owner;
    setup.hops = &mine.plan->lanes[0];
    setup.chunk = block_size;
    setup.phase = phase_;
    setup.staging = std::min(staging_of_a_side, std::max(bytes_, block_size));
    setup.from = written;
    if (written == nullptr) {
        backend::AttachOptions options;
        options.expected_size = bytes_;
        SIDESTEP_TRY(mine.attached, setup.hops->front().backend->attach(buffer, options));
        setup.from = mine.attached.get();
    }
    setup.sink = [this, side](Bytes offset, const void* data, Bytes size) {
        return see(side, offset, data, size);
    };
    SIDESTEP_TRY(mine.lane, LaneRunner::create(std::move(setup), pool));
    return {};
}

Result<void> Verifier::see(int side, Bytes offset, const void* data, Bytes size) {
    Block& block = blocks_[(phase_ + offset) / block_size];
    block.hash[side] = base::xxh3(data, size);
    block.seen[side] = true;
    if (!block.seen[0] || !block.seen[1]) return {};
    ++compared_;
    if (block.hash[0] == block.hash[1]) return {};
    return Error{
        ErrorCode::mismatch,
        fmt::format("source and target differ in the {} that start at byte {}", format_bytes(size), offset),
        "verify", "copy again; if it happens twice, suspect the path: prefer another with --prefer"};
}

Result<bool> Verifier::step() {
    bool moved = false;
    for (Side& side : sides_) {
        SIDESTEP_TRY(const bool step_moved, side.lane->step(side.cursor));
        moved |= step_moved;
    }
    return moved;
}

void Verifier::stop() {
    for (Side& side : sides_)
        if (side.lane) side.lane->stop();
}

bool Verifier::idle() const {
    return std::all_of(std::begin(sides_), std::end(sides_),
                       [](const Side& side) { return !side.lane || side.lane->idle(); });
}

}  // namespace sidestep::transfer
