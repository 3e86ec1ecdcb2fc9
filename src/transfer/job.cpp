// One copy from submission to receipt, as a Movement.
#include <algorithm>
#include <array>
#include <bit>

#include <fmt/format.h>

#include "base/rounding.hpp"
#include "base/try.hpp"
#include "base/xxh3.hpp"
#include "transfer/lane.hpp"
#include "transfer/movement.hpp"

namespace sidestep::transfer {
namespace {

// Chunk sizes. A direct copy between memories is cut only so that it can be cancelled, at every 10 ms or
// so; a file is read in pieces that several requests carry at once; a staged copy overlaps its hops chunk
// by chunk.
constexpr Bytes direct_host_chunk = Bytes{128} << 20;
constexpr Bytes direct_gpu_chunk = Bytes{512} << 20;
constexpr Bytes direct_file_chunk = Bytes{4} << 20;
constexpr Bytes staged_file_chunk = Bytes{2} << 20;
constexpr Bytes min_staged_chunk = Bytes{256} << 10;
// Staging memory for each stop: enough chunks in flight to keep 16 readers and the GPU busy.
constexpr Bytes max_staging_a_stop = Bytes{64} << 20;
// The same in the memory of a neighbour GPU, and chunks in flight on one of several lanes: enough to keep
// both of its hops busy, few enough that a lane which falls behind holds little back at the end.
constexpr Bytes relay_ring = Bytes{32} << 20;
constexpr std::size_t chunks_on_a_lane = 4;

Bytes chunk_of(const Ends& ends, const CopyOptions& options, bool staged, bool on_stream) {
    if (on_stream) return ends.bytes;
    if (options.chunk != 0) return base::round_up(options.chunk, base::page);
    if (!staged && (touches_file(ends) || touches_node(ends))) return direct_file_chunk;
    const bool gpu = ends.from.place().is_gpu() || ends.to.place().is_gpu();
    if (!staged) return gpu ? direct_gpu_chunk : direct_host_chunk;
    const Bytes max = touches_file(ends) ? staged_file_chunk : route::staged_chunk;
    // Eight chunks or more let the hops of a small copy overlap too.
    return std::clamp(base::round_up(ends.bytes / 8, base::page), min_staged_chunk, max);
}

using backend::Access;
using backend::Registration;

// Reads both ends of a finished copy and compares their hashes, block by block. Driven by step(), like a LaneRunner. Must be drained before it is destroyed.
class Verifier {
public:
    // `written`, where it is not null, is the target's registration with the backend that wrote it: a file
    // that has no name yet can only be read through it. `staging`: of both sides; two pages at least.
    static Result<std::unique_ptr<Verifier>> create(backend::PieceOwner& owner, Machine& machine,
                                                    const Ends& ends, Registration* written, Bytes staging) {
        std::unique_ptr<Verifier> verifier(new Verifier(ends, staging));
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
    static constexpr Bytes largest_block = Bytes{4} << 20;
    static constexpr Bytes max_staging_of_a_side = Bytes{32} << 20;
    // XXH3 of one block at either end.
    using Block = std::array<std::optional<std::uint64_t>, 2>;
    struct Side {
        std::shared_ptr<const ReadyPlan> plan;
        std::unique_ptr<backend::Registration> attached;
        std::unique_ptr<LaneRunner> lane;
        Cursor cursor;
    };

    Verifier(const Ends& ends, Bytes staging)
        : staging_(std::clamp(std::bit_floor(staging / 2), base::page, max_staging_of_a_side)),
          bytes_(ends.bytes),
          phase_(phase_of(ends.from, ends.to)),
          blocks_((phase_ + ends.bytes + block_size_ - 1) / block_size_) {}

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
        setup.chunk = block_size_;
        setup.phase = phase_;
        setup.staging = std::min(staging_, std::max(bytes_, block_size_));
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
        Block& block = blocks_[(phase_ + offset) / block_size_];
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

    const Bytes staging_;  // of a side
    const Bytes block_size_ = std::min(largest_block, staging_);
    const Bytes bytes_;
    const Bytes phase_;  // of both cursors: blocks begin where those of the file do
    std::vector<Block> blocks_;
    std::size_t compared_ = 0;
    Side sides_[2];
};

class Job final : public Movement {
public:
    Job(Machine& machine, const CopyOptions& options, void* stream)
        : Movement(machine, options, stream, {"the copy", "copied"}) {}
    ~Job() override { close(); }

    // Resolves both ends, plans, attaches and starts the first pieces.
    void begin(const Buffer& from, const Buffer& to) {
        std::lock_guard lock(mutex_);
        target_ = to;
        writes_files_ = to.place().is_file();
        const bool shared = from.place().is_shared() || to.place().is_shared();
        const bool far = !from.place().node().empty() || !to.place().node().empty();
        asks_files_or_others_ = writes_files_ || from.place().is_file() || shared || far;
        // On a stream the copy's place is where it was submitted.
        if (stream_ != nullptr || !asks_files_or_others_) return begin_moving(prepare(from, to), false);
        open([this, from, to] { return prepare(from, to); }, false);
    }

private:
    struct Attached {
        backend::Backend* backend;
        Access access;
        std::shared_ptr<Registration> registration;
    };

    std::string where() const override { return target_.to_string(); }
    bool go_on(bool) override {
        const bool moved = move();
        if (state_ == State::moving && lost_ && may_detour(ends_) && idle()) {
            open_again([this] { return detour(); });
            return true;
        }
        return (verifier_ && state_ != State::moving && verify()) || moved;
    }

    bool go_on_beside() override { return move(); }
    bool needs_driver() const override { return state_ != State::moving || idle(); }
    // Lanes of other copies need not make way for what may hang.
    void stop() override {
        for (auto& lane : lanes_)
            if (lane) lane->stop();
        if (verifier_) verifier_->stop();
        host_link_ = {};
    }

    bool idle() const override {
        return std::ranges::all_of(lanes_, [](const auto& lane) { return !lane || lane->idle(); }) &&
               (!verifier_ || verifier_->idle());
    }

    // Where the copy is on the stream itself, only its end tells.
    bool may_stall() const override { return stream_ == nullptr || place_.has_gate(); }
    Result<void> make_final() override {
        for (const Attached& attached : attached_)
            if (attached.access == Access::write) SIDESTEP_CHECK(attached.registration->commit());
        return {};
    }

    Receipt receipt() override {
        for (const Attached& attached : attached_)
            for (std::string& text : attached.registration->notes()) note(std::move(text));
        receipt_.route = std::shared_ptr<const Route>(plan_, &plan_->route);
        return std::move(receipt_);
    }

    void release() override {
        lanes_.clear();
        host_link_ = {};
        // What is closed later holds no memory here, which may be freed from now on.
        std::erase_if(attached_, [](const Attached& one) {
            one.registration->unmap();
            const Place& place = one.registration->buffer().place();
            return !place.is_file() && place.node().empty();
        });
        std::pair open(std::exchange(attached_, {}), std::move(verifier_));
        if (aside() != nullptr) let_go(std::make_shared<decltype(open)>(std::move(open)));
    }

    Result<void> prepare(const Buffer& from, const Buffer& to) {
        if (stream_ != nullptr) SIDESTEP_CHECK(place_.join(machine_.streams, stream_));
        SIDESTEP_TRY(ends_, resolve_ends(machine_.topology, machine_.registry, from, to, machine_.shared,
                                         options_.deadline));
        total_.store(ends_.bytes, std::memory_order_relaxed);
        SIDESTEP_TRY(plan_, machine_.plans.get(ends_, wishes()));
        note_unmet_preference();
        SIDESTEP_CHECK(attach_ends());
        count_traffic();
        if (ends_.bytes > 0) SIDESTEP_CHECK(add_lanes());
        if (options_.verify && ends_.bytes > 0) SIDESTEP_CHECK(add_verifier());
        // The gate comes last: behind a closed one the CUDA driver blocks whoever frees memory (seen on H200,
        // driver 580.159.04), and does not say which other calls it may block.
        if (!needs_gate()) return {};
        state_ = State::gated;
        return place_.hold(machine_.streams, machine_.registry, stream_);
    }

    // A wish that the route could not meet is said in the receipt, not only among the refused paths.
    void note_unmet_preference() {
        if (options_.prefer == Prefer::automatic) return;
        for (const auto& lane : plan_->lanes)
            for (const ReadyHop& hop : lane)
                if (hop.meets == options_.prefer) return;
        note(fmt::format("a {} was preferred, but none can carry these bytes",
                         options_.prefer == Prefer::kernel ? "kernel" : "copy engine"));
    }

    // Both are attached, and errors found, before a byte moves. Where both are files, holes of the source stay holes.
    Result<void> attach_ends() {
        const bool files = ends_.from.place().is_file() && ends_.to.whole_file();
        std::optional<std::vector<Cursor::Span>> extents;
        attached_.reserve(2 * plan_->lanes.size());
        for (const auto& hops : plan_->lanes) {
            SIDESTEP_TRY(const Registration* const from, attach(hops.front().backend, Access::read));
            if (files && !extents) extents = from->extents();
        }
        is_sparse_ = extents.has_value();
        for (const auto& hops : plan_->lanes) {
            SIDESTEP_TRY(const Registration* const to, attach(hops.back().backend, Access::write));
            is_sparse_ &= to->reads_as_zeros();
        }
        const Bytes phase = phase_of(ends_.from, ends_.to);
        cursor_ = Cursor(ends_.bytes, phase);
        if (!is_sparse_) return {};
        holes_ = ends_.bytes;
        for (const Cursor::Span& extent : *extents) holes_ -= extent.size;
        cursor_ = Cursor(std::move(*extents), phase);
        note(fmt::format("{} of the source are holes, which stay holes in the target", format_bytes(holes_)));
        return {};
    }

    // On a caller's stream one lane can be enqueued as it is; several would hold the stream at a gate. The other half of the
    // staging memory is for verification.
    CopyOptions wishes() const {
        CopyOptions wished = options_;
        if (stream_ != nullptr && wished.lanes == 0) wished.lanes = 1;
        if (wished.verify) wished.max_staging /= 2;
        return wished;
    }

    // All lanes of the plan; of several, those that get no staging memory are left out.
    Result<void> add_lanes() {
        const std::size_t count = plan_->lanes.size();
        receipt_.lane_failures.assign(count, {});
        lanes_.resize(count);
        std::size_t left_out = 0;
        for (std::size_t lane = 0; lane < count; ++lane) {
            const auto added = add_lane(lane);
            if (added) continue;
            if (added.error().code != ErrorCode::out_of_memory || ++left_out == count) return added;
            receipt_.lane_failures[lane] = added.error().message;
            note(fmt::format("lane {} was left out: {}", lane + 1, added.error().message));
        }
        const bool one_piece =
            has_one_hop() && phase_of(ends_.from, ends_.to) + ends_.bytes <= lanes_[0]->chunk();
        needs_driving_ = !one_piece || ends_.to.place().is_file() || options_.verify || needs_gate();
        return {};
    }

    Result<void> add_lane(std::size_t lane) {
        const auto& hops = plan_->lanes[lane];
        LaneSetup setup = shape_of(lane);
        setup.owner = this;
        setup.hops = hops;
        setup.phase = phase_of(ends_.from, ends_.to);
        setup.yields_to = yields_to(lane);
        SIDESTEP_TRY(setup.from, attach(hops.front().backend, Access::read));
        SIDESTEP_TRY(setup.to, attach(hops.back().backend, Access::write));
        if (has_one_hop()) expect(plan_->route, std::min(ends_.bytes, setup.chunk));
        SIDESTEP_TRY(lanes_[lane], LaneRunner::create(std::move(setup), machine_.pool));
        return {};
    }

    // Chunks, depth and staging memory of a lane.
    LaneSetup shape_of(std::size_t lane) const {
        const std::size_t count = plan_->lanes.size();
        const Bytes stops = plan_->lanes[lane].size() - 1;
        LaneSetup setup;
        if (stream_ != nullptr && !needs_gate()) setup.stream = stream_;
        setup.chunk = chunk_of(ends_, options_, stops > 0, setup.stream != nullptr);
        setup.depth = touches_file(ends_) || touches_node(ends_) ? 16 : 2;
        if (count > 1) {
            if (options_.chunk == 0) setup.chunk = route::lane_chunk(ends_.bytes, count);
            setup.depth = chunks_on_a_lane;
            setup.max_new = 1;
        }
        if (stops == 0) return setup;
        std::size_t all_stops = 0;
        for (const auto& hops : plan_->lanes) all_stops += hops.size() - 1;
        Bytes bound = std::min(wishes().max_staging / all_stops, max_staging_a_stop);
        for (const ReadyHop& hop : plan_->lanes[lane])
            if (hop.to_memory == MemoryKind::device && &hop != &plan_->lanes[lane].back())
                bound = std::min({bound, relay_ring, machine_.pool.relay_limit(hop.to.index())});
        // A power of two, since that is what the pool hands out.
        const Bytes ring = std::bit_floor(std::max(bound, base::page));
        setup.chunk = std::min(setup.chunk, count > 1 ? std::max(ring / 2, base::page) : ring);
        setup.staging = std::min(ring, base::round_up(ends_.bytes, setup.chunk));
        if (count > 1) setup.staging = std::min(setup.staging, chunks_on_a_lane * setup.chunk);
        return setup;
    }

    // Where one end is host memory and the other a GPU, its own link is in use from now on.
    void count_traffic() {
        const Place& from = ends_.from.place();
        const Place& to = ends_.to.place();
        if (touches_node(ends_) || from.is_gpu() == to.is_gpu()) return;  // the network is the narrower one
        host_link_ = machine_.traffic.use(to.is_gpu() ? to.index() : from.index(), direction());
    }

    Direction direction() const {
        return ends_.to.place().is_gpu() ? Direction::to_gpu : Direction::from_gpu;
    }

    const std::atomic<int>* yields_to(std::size_t lane) const {
        const auto& hops = plan_->lanes[lane];
        if (plan_->lanes.size() == 1 || hops.size() == 1 || !hops[0].to.is_gpu()) return nullptr;
        if (ends_.from.place().is_gpu() && ends_.to.place().is_gpu()) return nullptr;
        return &machine_.traffic.counter(hops[0].to.index(), direction());
    }

    // Verification has its own lanes and staging memory, made ready before the first byte moves.
    Result<void> add_verifier() {
        Registration* written = nullptr;
        if (ends_.to.place().is_file())
            for (const Attached& attached : attached_)
                if (attached.access == Access::write) written = attached.registration.get();
        const double before = seconds_since_start();
        SIDESTEP_TRY(verifier_, Verifier::create(*this, machine_, ends_, written, options_.max_staging / 2));
        receipt_.verify_seconds = seconds_since_start() - before;
        return {};
    }

    bool has_one_hop() const { return plan_->lanes.size() == 1 && plan_->lanes[0].size() == 1; }
    // A copy of one hop goes onto the caller's stream itself. Any other holds the stream at a gate, and so does one that is
    // verified: what comes behind it may write to either end.
    bool needs_gate() const {
        return stream_ != nullptr && (options_.verify || !has_one_hop() || !plan_->lanes[0][0].streams);
    }

    // The registration of one end with one backend, shared by the lanes that use it.
    Result<Registration*> attach(backend::Backend* backend, Access access) {
        const bool reads = access == Access::read;
        for (const Attached& attached : attached_)
            if (attached.backend == backend && attached.access == access) return attached.registration.get();
        backend::AttachOptions options = file_options();
        options.access = access;
        options.expected_size = ends_.bytes;
        options.identity = reads ? ends_.from_identity : ends_.to_identity;
        options.version = reads ? ends_.from_version : 0;
        options.sparse = !reads && is_sparse_;
        options.never_read = !reads && !options_.verify;
        SIDESTEP_TRY(auto registration,
                     machine_.registrations->get(*backend, reads ? ends_.from : ends_.to, options));
        attached_.push_back({backend, access, std::move(registration)});
        return attached_.back().registration.get();
    }

    bool move() {
        bool moved = false;
        bool all_idle = true;
        Bytes arrived = 0;
        for (std::size_t i = 0; i < lanes_.size(); ++i) {
            if (!lanes_[i]) continue;
            auto stepped = lanes_[i]->step(cursor_);
            if (!stepped) lose(i, stepped.error());
            moved |= stepped && *stepped;
            all_idle &= lanes_[i]->idle();
            arrived += lanes_[i]->arrived();
        }
        done_.store(holes_ + before_ + arrived, std::memory_order_relaxed);
        if (state_ == State::moving && all_idle && cursor_.empty()) {
            all_arrived();
            moved = true;
        }
        return moved;
    }

    bool verify() {
        auto stepped = verifier_->step();
        if (!stepped) return fail(stepped.error()), true;
        if (state_ != State::verifying || !verifier_->finished()) return *stepped;
        place_.pass();
        all_equal();
        return true;
    }

    void all_arrived() {
        if (auto before = place_.failure_before()) return fail(std::move(*before));
        receipt_.bytes = ends_.bytes;
        receipt_.seconds = seconds_since_start() - receipt_.verify_seconds;
        for (const auto& lane : lanes_) receipt_.lane_bytes.push_back(lane ? lane->arrived() : 0);
        // Before verification reads them all once more.
        for (const Attached& attached : attached_) receipt_.storage += attached.registration->storage_bytes();
        if (lanes_.empty()) receipt_.lane_bytes.assign(plan_->lanes.size(), 0);
        if (!verifier_) {
            place_.pass();
            receipt_.verified = options_.verify;  // nothing to compare in no bytes
        }
        state_ = verifier_ ? State::verifying : State::committing;
    }

    // A lane cannot go on: the others take over what it had not brought to its end. The copy fails with the last.
    void lose(std::size_t lane, Error error) {
        if (!receipt_.lane_failures[lane].empty()) return;
        receipt_.lane_failures[lane] = error.message;
        const auto& failures = receipt_.lane_failures;
        if (std::ranges::none_of(failures, &std::string::empty))
            return has_one_hop() && may_detour(ends_) ? void(lost_ = std::move(error))
                                                      : fail(std::move(error));
        for (const auto& left : lanes_)
            if (left) left->make_no_way();
        note(fmt::format("lane {} failed and the others took over: {}", lane + 1, error.to_string()));
    }

    Result<void> detour() {
        const auto against = against_way(ends_, lanes_[0]->arrived());
        if (against.empty()) return *lost_;
        auto plan = machine_.plans.get(ends_, wishes(), against);
        if (!plan) return *lost_;
        before_ = lanes_[0]->arrived();
        lanes_.clear();
        plan_ = std::move(*plan);
        return add_lanes();
    }

    Buffer target_;  // as the caller named it
    Ends ends_;
    std::shared_ptr<const ReadyPlan> plan_;
    std::vector<Attached> attached_;
    std::vector<std::unique_ptr<LaneRunner>> lanes_;  // as in the plan; null: left out for want of memory
    HostLinkTraffic::Use host_link_;
    Cursor cursor_;
    bool is_sparse_ = false;  // holes of the source are not written
    Bytes holes_ = 0;
    Bytes before_ = 0;           // had arrived when the detour began
    std::optional<Error> lost_;  // for which there may be one
    std::unique_ptr<Verifier> verifier_;
};

}  // namespace

std::shared_ptr<Movement> begin_copy(Machine& machine, const Buffer& from, const Buffer& to,
                                     const CopyOptions& options, void* stream) {
    auto job = std::make_shared<Job>(machine, options, stream);
    job->begin(from, to);
    return job;
}

}  // namespace sidestep::transfer
