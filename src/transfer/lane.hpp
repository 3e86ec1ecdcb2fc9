// One lane of a plan at work: chunks moving through hops, with staging slots between them.
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "transfer/plans.hpp"
#include "transfer/staging.hpp"

namespace sidestep::transfer {

// The bytes of a copy that no lane has taken yet, or that one has given back. Shared by the lanes of one
// copy: one that falls behind takes fewer.
class Cursor {
public:
    // `phase`: how far into a block of a file the first byte lies. Every chunk but the first begins at a
    // block then, as long as chunks are whole blocks.
    explicit Cursor(Bytes total = 0, Bytes phase = 0) : total_(total), phase_(phase) {}
    using Span = backend::Span;
    // Of these alone, in order; each but one at 0 begins at a block.
    Cursor(std::vector<Span> spans, Bytes phase) : returned_(spans.rbegin(), spans.rend()), phase_(phase) {}
    bool empty() const { return next_ == total_ && returned_.empty(); }
    Span take(Bytes chunk);
    // What a lane took and did not bring to its end.
    void give_back(Span span) { returned_.push_back(span); }

private:
    std::vector<Span> returned_;
    Bytes next_ = 0;
    Bytes total_ = 0;
    Bytes phase_ = 0;
};

// Blocks in which files are read and written around the page cache.
inline constexpr Bytes file_block = 4096;

// The cursor's phase for a copy between two buffers: that of the file, of two files that of the source.
Bytes phase_of(const Buffer& from, const Buffer& to);

// Of parts that are moved many at a time: a chunk is at most so many whole ones, and beyond the first at most so many bytes.
template <typename Part>
Cursor cursor_of_parts(std::span<const Part> parts, std::size_t most, Bytes most_bytes) {
    std::vector<Cursor::Span> chunks;
    std::size_t count = most;  // of the last one
    for (std::size_t i = 0; i < parts.size(); ++i, ++count) {
        if (count == most || chunks.back().size + parts[i].size > most_bytes) {
            chunks.push_back({i, 0});
            count = 0;
        }
        chunks.back().size += parts[i].size;
    }
    return Cursor(std::move(chunks), 0);
}

// So many at most: three full launches of the CUDA backend's batch kernel.
inline constexpr std::size_t parts_a_call = 4080;

// The parts of such a chunk.
template <typename Part>
std::span<const Part> parts_of(std::span<const Part> parts, Cursor::Span chunk) {
    std::size_t end = chunk.offset;
    for (Bytes left = chunk.size; left > 0; ++end) left -= parts[end].size;
    return parts.subspan(chunk.offset, end - chunk.offset);
}

// Looks at a chunk that has arrived in host memory.
using Sink = std::function<Result<void>(Bytes offset, const void* data, Bytes size)>;

// Many small copies as one lane, with a cursor_of_parts(). The copies of a chunk are made in one call: its span tells which one
// is the first, and the bytes of all.
class LaneParts {
public:
    virtual ~LaneParts() = default;
    // Those of a chunk: like `all`, whose ends are slots, or null where each copy has its own. Valid until the next call.
    virtual std::span<const backend::Piece> pieces(Cursor::Span chunk, const backend::Piece& all) = 0;
    // What a chunk failed with.
    virtual Error told(Error error, Cursor::Span chunk) const = 0;
};

// How a lane is set up.
struct LaneSetup {
    backend::PieceOwner* owner = nullptr;   // of its pieces; outlives the lane
    std::span<const ReadyHop> hops = {};    // outlive the lane
    backend::Registration* from = nullptr;  // attached to the first hop's backend; outlives the lane
    backend::Registration* to = nullptr;    // attached to the last hop's backend; null with a sink
    // Then `from` and `to` are null. Several parts at once go to engines that take batches.
    LaneParts* parts = nullptr;
    Sink sink = {};  // where `to` is null: the last hop ends in host memory
    Bytes chunk = 0;
    Bytes phase = 0;                        // of the cursor: a chunk lies as far into a block of its slot
    std::size_t depth = 1;                  // chunks in flight where no slots bound them
    std::size_t max_new = ~std::size_t{0};  // chunks taken in one step: 1 lets lanes take turns
    Bytes staging = 0;                      // bytes of staging memory for each stop
    void* stream = nullptr;                 // a caller's stream, for a lane of one hop
    // Copies that begin or end at the GPU the lane passes through, or lanes of a batch that have to come to rest: while there
    // are any, the lane takes nothing new. Null: there never are.
    const std::atomic<int>* yields_to = nullptr;
};

// Driven by step(), by one thread at a time. Must be drained before it is destroyed.
class LaneRunner {
public:
    // Of one hop, and without a sink: there is no stop to make ready.
    explicit LaneRunner(LaneSetup setup) : setup_(std::move(setup)) {}
    static Result<std::unique_ptr<LaneRunner>> create(LaneSetup setup, StagingPool& pool);

    // Looks at what is in flight, moves arrived chunks on, takes new ones from the cursor as long as slots
    // are free. Answers whether anything moved. After an error no new piece is started; step() then only
    // waits for the pieces in flight.
    Result<bool> step(Cursor& cursor);

    // From now on nothing new is started, and what only waits in a backend is taken back. Chunks that have not arrived go
    // back to the cursor.
    void stop();

    // It took over what another lane cannot bring.
    void make_no_way() { setup_.yields_to = nullptr; }
    bool idle() const { return flights_.empty(); }
    // Bytes of the chunk that has been in flight for longest: it ends next. 0 when idle.
    Bytes oldest() const { return flights_.empty() ? 0 : flights_.front().span.size; }
    Bytes chunk() const { return setup_.chunk; }
    Bytes arrived() const { return arrived_; }

private:
    struct Flight {
        Cursor::Span span;
        std::size_t hop = 0;
        std::optional<std::size_t> source_slot;  // of the stop before `hop`
        std::optional<std::size_t> target_slot;  // of the stop after `hop`
        std::optional<backend::Flight> piece;    // in flight
        bool ended = false;
    };

    bool may_take(const Cursor& cursor) const;
    Result<bool> advance(Flight& flight, Cursor& cursor);
    Result<bool> begin(Flight& flight);
    Result<backend::Progress> start(const ReadyHop& hop, const backend::Piece& piece, Flight& flight);
    Result<bool> landed(Flight& flight);
    Result<void> land(Flight& flight);
    void drop(Flight& flight, Cursor& cursor);
    Bytes place_in(std::size_t slot, Bytes offset) const;

    LaneSetup setup_;
    std::vector<SlotRing> stops_;  // between hop i and hop i + 1, a slot for each chunk
    std::list<Flight> flights_;
    Bytes arrived_ = 0;
    bool stopped_ = false;
};

}  // namespace sidestep::transfer
