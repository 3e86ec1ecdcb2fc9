// Groups of this user's processes, read from their boards while they run, hang or are gone.
#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/environment.hpp"
#include "base/try.hpp"
#include "collective/board.hpp"
#include "driver/system_error.hpp"
#include "peer/folder.hpp"

namespace sidestep {
namespace {

using collective::BoardFile;

constexpr std::size_t max_groups = 4096;
// Younger waits are nothing to speak of.
constexpr double stuck_from_s = 1;

struct Closed {
    void operator()(DIR* folder) const { ::closedir(folder); }
};

// "group-<32 digits>." and what follows.
std::string group_of(const std::string& name) {
    constexpr std::size_t length = 6 + 32;
    return name.size() > length && name.compare(0, 6, "group-") == 0 && name[length] == '.'
               ? name.substr(0, length)
               : "";
}

// Bytes of a file are what another process writes meanwhile: a copy is read.
std::unique_ptr<BoardFile> read_board(const std::string& path) {
    const driver::Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (!fd) return nullptr;
    std::string bytes(sizeof(BoardFile) + 1, '\0');
    std::size_t at = 0;
    while (at < bytes.size()) {
        const ssize_t size = ::pread(fd.get(), bytes.data() + at, bytes.size() - at, static_cast<off_t>(at));
        if (size <= 0) break;
        at += static_cast<std::size_t>(size);
    }
    if (at != sizeof(BoardFile)) return nullptr;
    auto board = std::make_unique<BoardFile>();
    std::memcpy(static_cast<void*>(board.get()), bytes.data(), sizeof(BoardFile));
    const std::uint64_t ranks = board->ranks.load();
    if (board->magic.load() != BoardFile::right_magic || ranks < 1 || ranks > backend::max_ranks)
        return nullptr;
    return board;
}

RunningRank rank_of(const BoardFile& board, unsigned rank) {
    const BoardFile::Row& row = board.rows[rank];
    RunningRank found;
    found.rank = static_cast<int>(rank);
    if (row.state.load() == BoardFile::absent) return found;
    found.process = board.process_of(rank).process;
    found.alive = row.state.load() == BoardFile::joined && driver::still_runs(board.process_of(rank));
    found.place = row.place.load();
    found.enqueued = row.enqueued.load();
    found.done = std::min<std::uint64_t>(row.done.load(), found.enqueued);
    found.error = row.error.load();
    if (const auto last = board.last(rank)) found.last = last->text();
    if (found.done == found.enqueued || !found.alive) return found;
    // The oldest that has not ended, or the oldest that is still remembered.
    for (std::uint64_t number = found.done + 1; number <= found.enqueued; ++number) {
        number = std::max<std::uint64_t>(
            number, found.enqueued < BoardFile::remembered ? 1 : found.enqueued - BoardFile::remembered + 1);
        const auto noted = board.find(rank, number);
        if (!noted) continue;
        const std::uint64_t now = collective::steady_ns();
        found.waiting_s = now > noted->time_ns ? static_cast<double>(now - noted->time_ns) / 1e9 : 0;
        break;
    }
    return found;
}

std::string who_waits(const BoardFile& board, const std::vector<RunningRank>& ranks) {
    std::vector<int> waiting;
    double longest = 0;
    for (const RunningRank& rank : ranks) {
        if (rank.waiting_s < stuck_from_s || !rank.error.empty()) continue;
        waiting.push_back(rank.rank);
        longest = std::max(longest, rank.waiting_s);
    }
    if (waiting.empty()) return "";
    std::uint64_t max = 0;
    for (const int rank : waiting) max = std::max(max, board.rows[rank].steps.load());
    std::vector<std::string> late;
    for (const RunningRank& rank : ranks) {
        const std::uint64_t steps = board.rows[rank.rank].steps.load();
        if (rank.process == 0)
            late.push_back(fmt::format("rank {} (not there)", rank.rank));
        else if (!rank.alive)
            late.push_back(fmt::format("rank {} (process {}, gone)", rank.rank, rank.process));
        else if (steps < max)
            late.push_back(
                fmt::format("rank {} (process {}, at operation {})", rank.rank, rank.process, steps));
    }
    const std::string who =
        fmt::format("rank{} {}", waiting.size() == 1 ? "" : "s", fmt::join(waiting, ", "));
    const auto noted = board.last(static_cast<unsigned>(waiting.front()));
    const std::string what = noted ? noted->text() : "an operation";
    if (late.empty()) return fmt::format("{} for {:.0f} s in operation {}, {}", who, longest, max, what);
    return fmt::format("{} wait{} for {} since {:.0f} s, in operation {}, {}", who,
                       waiting.size() == 1 ? "s" : "", fmt::join(late, ", "), longest, max, what);
}

RunningGroup group_from(const BoardFile& board) {
    RunningGroup group;
    group.name = board.name.load();
    group.id = board.id.load();
    for (unsigned rank = 0; rank < board.ranks.load(); ++rank) group.ranks.push_back(rank_of(board, rank));
    group.stuck = who_waits(board, group.ranks);
    return group;
}

}  // namespace

Result<std::vector<RunningGroup>> running_groups(const std::string& peer_folder) {
    SIDESTEP_TRY(const base::Environment environment, base::Environment::read());
    const std::string& wanted = peer_folder.empty() ? environment.peer_folder : peer_folder;
    auto folder = peer::Folder::open(wanted, false);
    // Where nobody has made it there is no group; something else of that name is a mistake.
    const bool absent = wanted.empty() || ::access(wanted.c_str(), F_OK) != 0;
    if (!folder && folder.error().code == ErrorCode::not_found && absent) return std::vector<RunningGroup>();
    if (!folder) return folder.error();
    const std::unique_ptr<DIR, Closed> listing(::opendir(folder->path().c_str()));
    if (!listing) return driver::system_error(errno, "the folder of groups cannot be read", folder->path());
    std::set<std::string> names;
    for (const dirent* entry = ::readdir(listing.get()); entry != nullptr; entry = ::readdir(listing.get()))
        if (!group_of(entry->d_name).empty() && names.size() < max_groups * backend::max_ranks)
            names.insert(entry->d_name);
    std::vector<RunningGroup> groups;
    for (const std::string& name : names) {
        const std::string path = folder->socket_of(name);
        if (!name.ends_with(".board")) {
            (void)folder->tidy(name);  // of a rank that died while it joined
            continue;
        }
        const auto board = read_board(path);
        if (!board) continue;  // of another version, or being made
        if (collective::nobody_left(*board))
            ::unlink(path.c_str());
        else if (groups.size() < max_groups)
            groups.push_back(group_from(*board));
    }
    return groups;
}

}  // namespace sidestep
