#include "collective/board.hpp"

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>

#include <fmt/format.h>

#include "base/try.hpp"

namespace sidestep::collective {
namespace {

constexpr auto relaxed = std::memory_order_relaxed;

// The rows of this process. One that ends by exit() without having left its groups, as programs in Python do,
// says so on the way out, so that the others do not take it for dead. Never freed: threads may leave groups
// while the process ends.
class OwnRows {
public:
    static OwnRows& all() {
        static OwnRows& rows = *new OwnRows;
        return rows;
    }
    void add(BoardFile::Row* row, const BoardCopy& copy, unsigned rank) {
        const std::lock_guard lock(mutex_);
        rows_[row] = {&copy, rank};
    }
    // Under the lock, so that the second one to come, who unmaps the board, does so afterwards.
    void leave(BoardFile::Row* row) {
        const std::lock_guard lock(mutex_);
        const auto found = rows_.find(row);
        if (found == rows_.end()) return;
        say_left(*found);
        rows_.erase(found);
    }

private:
    OwnRows() {
        ending::on_begin([] {
            const std::lock_guard lock(all().mutex_);
            for (const auto& row : all().rows_)
                if (!row.second.maker.forked()) say_left(row);
        });
    }
    struct Own {
        const BoardCopy* copy = nullptr;
        unsigned rank = 0;
        ending::Maker maker = {};
    };
    using Rows = std::map<BoardFile::Row*, Own>;
    static void say_left(const Rows::value_type& row) {
        row.first->state.store(BoardFile::left);
        row.second.copy->write_left(row.second.rank);
    }
    std::mutex mutex_;
    Rows rows_;
};

std::uint64_t pack(const Noted& noted) {
    return static_cast<std::uint64_t>(noted.collective) |
           std::uint64_t{static_cast<std::uint8_t>(noted.element)} << 8 |
           std::uint64_t{static_cast<std::uint8_t>(noted.combine)} << 16 | std::uint64_t{noted.root} << 24 |
           std::uint64_t{noted.peers} << 32 | std::uint64_t{noted.calls} << 48;
}

// False for what no version of this code wrote.
bool unpack(std::uint64_t what, Noted& noted) {
    const auto collective = static_cast<unsigned>(what & 0xff);
    const auto element = static_cast<unsigned>(what >> 8 & 0xff);
    const auto combine = static_cast<unsigned>(what >> 16 & 0xff);
    if (collective > static_cast<unsigned>(Collective::barrier) || element >= protocol::elements ||
        combine > static_cast<unsigned>(protocol::Combine::scaled_sum))
        return false;
    noted.collective = static_cast<Collective>(collective);
    noted.element = static_cast<protocol::Element>(element);
    noted.combine = static_cast<protocol::Combine>(combine);
    noted.root = static_cast<std::uint8_t>(what >> 24 & 0xff);
    noted.peers = static_cast<std::uint16_t>(what >> 32 & 0xffff);
    noted.calls = static_cast<std::uint8_t>(what >> 48 & 0xff);
    return true;
}

std::optional<Noted> read(const BoardFile::Cell& cell) {
    Noted noted;
    noted.number = cell.number.load(std::memory_order_acquire);
    noted.step = cell.step.load(relaxed);
    noted.time_ns = cell.time_ns.load(relaxed);
    noted.count = cell.count.load(relaxed);
    noted.signature = static_cast<std::uint32_t>(cell.signature.load(relaxed));
    if (noted.number == 0 || !unpack(cell.what.load(relaxed), noted)) return std::nullopt;
    return noted;
}

}  // namespace

std::uint64_t steady_ns() {
    static const std::int64_t shift = driver::clock_shift_ns();
    return static_cast<std::uint64_t>(
        std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1) - shift);
}

Noted note_of(const Operation& operation) {
    Noted noted{.count = operation.count,
                .collective = operation.collective,
                .element = operation.element,
                .combine = operation.combine,
                .root = static_cast<std::uint8_t>(operation.root),
                .calls = static_cast<std::uint8_t>(operation.coalesced.size())};
    for (const PairItem& item : operation.pairs)
        noted.peers = static_cast<std::uint16_t>(noted.peers | 1u << item.peer);
    return noted;
}

std::string Noted::text() const {
    Operation operation{
        .collective = collective, .count = count, .element = element, .combine = combine, .root = root};
    for (int rank = 0; rank < static_cast<int>(protocol::max_ranks); ++rank)
        if ((peers >> rank & 1) != 0) operation.pairs.push_back({true, rank, nullptr, 0});
    operation.coalesced.resize(calls);
    return describe(operation);
}

std::string Noted::numbered() const {
    return fmt::format("operation {}, {}", label(), text());
}

std::optional<Noted> BoardFile::find(unsigned rank, std::uint64_t number) const {
    const auto noted = read(rows[rank].cells[number % remembered]);
    return noted && noted->number == number ? noted : std::nullopt;
}

std::optional<Noted> BoardFile::find_step(unsigned rank, std::uint64_t step) const {
    for (const Cell& cell : rows[rank].cells)
        if (const auto noted = read(cell);
            noted && noted->step == step && noted->collective != Collective::send_recv)
            return noted;
    return std::nullopt;
}

std::optional<Noted> BoardFile::last(unsigned rank) const {
    return find(rank, rows[rank].enqueued.load(std::memory_order_acquire));
}

std::optional<Noted> BoardFile::oldest_unfinished(unsigned rank) const {
    const std::uint64_t done = rows[rank].done.load(std::memory_order_acquire);
    const std::uint64_t enqueued = rows[rank].enqueued.load(std::memory_order_acquire);
    if (done >= enqueued) return std::nullopt;
    for (std::uint64_t back = std::min<std::uint64_t>(enqueued - done, remembered); back > 0; --back)
        if (const auto noted = find(rank, enqueued - back + 1)) return noted;
    return std::nullopt;
}

driver::ProcessMark BoardFile::process_of(unsigned rank) const {
    const Row& row = rows[rank];
    return {static_cast<int>(row.process.load(relaxed)), row.started.load(relaxed),
            row.numbering.load(relaxed)};
}

Result<Board> Board::create(const std::string& path, unsigned ranks, const std::string& id,
                            const std::string& name) {
    SIDESTEP_TRY(driver::Fd memory, driver::make_shared_memory(sizeof(BoardFile)));
    SIDESTEP_TRY(driver::SharedMap map, driver::SharedMap::open(memory.get(), sizeof(BoardFile)));
    SIDESTEP_TRY(BoardCopy copy, BoardCopy::create(path));
    Board board(std::move(memory), std::move(map), std::move(copy));
    board.file().ranks.store(ranks, relaxed);
    board.file().id.store(id);
    board.file().name.store(name.empty() ? id : name);
    return board;
}

Result<Board> Board::adopt(driver::Fd fd, const std::string& path, unsigned ranks) {
    SIDESTEP_TRY(driver::SharedMap map, driver::SharedMap::open(fd.get(), sizeof(BoardFile)));
    Board board(std::move(fd), std::move(map), BoardCopy::open(path));
    if (board.file().magic.load(std::memory_order_acquire) != BoardFile::right_magic ||
        board.file().ranks.load(relaxed) != ranks)
        return Error{ErrorCode::io_error, "what rank 0 sent is not a board of this group", path, {}};
    return board;
}

Board::~Board() {
    if (map_.address() == nullptr) return;
    leave();
    if (nobody_left(file(), copy_->descriptor())) copy_->remove();
}

void Board::join(unsigned rank, const std::string& place) {
    const driver::ProcessMark own = driver::this_process();
    BoardFile::Row& row = file().rows[rank];
    row.process.store(static_cast<std::uint64_t>(own.process), relaxed);
    row.started.store(own.started, relaxed);
    row.numbering.store(own.numbering, relaxed);
    row.locked.store(copy_->lock(rank) ? 1 : 0, relaxed);
    row.place.store(place);
    row.state.store(BoardFile::joined, std::memory_order_release);
    // Not before a rank is there: a process that looks for remnants would take the file for one.
    file().magic.store(BoardFile::right_magic, std::memory_order_release);
    rank_ = rank;
    joined_ = true;
    copy_->write(file(), rank);
    OwnRows::all().add(&row, *copy_, rank);
}

void Board::leave() {
    // Once, by whichever thread comes first: that of the caller, or the service thread's.
    if (joined_ && !maker_.forked()) OwnRows::all().leave(&file().rows[rank_]);
}

void Board::died(unsigned rank) {
    std::uint64_t state = BoardFile::joined;
    if (file().rows[rank].state.compare_exchange_strong(state, BoardFile::died)) copy_->write(file(), rank);
}

Board::Changing Board::changing(unsigned rank) const {
    const BoardFile::Row& row = file().rows[rank];
    std::uint64_t pairs = 0;
    for (const auto& sent : row.sent) pairs += sent.load(relaxed);
    return {row.state.load(relaxed),
            row.enqueued.load(relaxed),
            row.done.load(relaxed),
            row.steps.load(relaxed),
            pairs,
            file().aborted.load(relaxed)};
}

void Board::show(unsigned rank) {
    const Changing now = changing(rank);
    if (now == shown_[rank]) return;
    copy_->write(file(), rank);
    shown_[rank] = now;
}

void Board::show() {
    show(rank_);
}

void Board::show_all() {
    for (unsigned rank = 0; rank < file().how_many(); ++rank) show(rank);
}

void Board::enqueued(unsigned rank, const Noted& noted) {
    BoardFile::Row& row = file().rows[rank];
    row.steps.store(noted.step, std::memory_order_release);
    row.enqueued.store(noted.number, std::memory_order_release);
}

void Board::refused(unsigned rank, const Noted& noted) {
    file().rows[rank].cells[noted.number % BoardFile::remembered].number.store(0, std::memory_order_release);
}

void Board::count(unsigned rank, const std::vector<PairItem>& pairs) {
    BoardFile::Row& row = file().rows[rank];
    for (const PairItem& item : pairs) {
        if (item.bytes == 0) continue;  // it moves nothing, and nobody waits for it
        (item.sends ? row.sent : row.received)[item.peer].fetch_add(1, std::memory_order_release);
    }
}

void Board::ended(unsigned rank, std::uint64_t number) {
    BoardFile::Row& row = file().rows[rank];
    std::uint64_t done = row.done.load(relaxed);
    if (done >= number) return;
    row.moved_ns.store(steady_ns(), relaxed);
    while (done < number &&
           !row.done.compare_exchange_weak(done, number, std::memory_order_release, relaxed)) {
    }
}

void Board::note(unsigned rank, const Noted& noted) {
    BoardFile::Row& row = file().rows[rank];
    BoardFile::Cell& cell = row.cells[noted.number % BoardFile::remembered];
    cell.number.store(0, relaxed);
    cell.step.store(noted.step, relaxed);
    cell.time_ns.store(noted.time_ns, relaxed);
    cell.count.store(noted.count, relaxed);
    cell.what.store(pack(noted), relaxed);
    cell.signature.store(noted.signature, relaxed);
    cell.number.store(noted.number, std::memory_order_release);
}

bool lives(const BoardFile& board, unsigned rank, int copy) {
    const BoardFile::Row& row = board.rows[rank];
    return row.state.load() == BoardFile::joined && driver::still_runs(board.process_of(rank)) &&
           (copy < 0 || row.locked.load() == 0 || is_locked(copy, rank));
}

bool nobody_left(const BoardFile& board, int copy) {
    for (unsigned rank = 0; rank < board.how_many(); ++rank)
        if (lives(board, rank, copy)) return false;
    return true;
}

}  // namespace sidestep::collective
