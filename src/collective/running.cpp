// Groups of this user's processes, read from their boards while they run, hang or are gone.
#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
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
using collective::Noted;

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
std::unique_ptr<BoardFile> read_board(const driver::Fd& fd) {
    if (!fd) return nullptr;
    std::string bytes(BoardFile::shown_bytes() + 1, '\0');
    std::size_t at = 0;
    while (at < bytes.size()) {
        const ssize_t size = ::pread(fd.get(), bytes.data() + at, bytes.size() - at, static_cast<off_t>(at));
        if (size <= 0) break;
        at += static_cast<std::size_t>(size);
    }
    // Ranks that have not joined may lie behind the end of a file that was cut short.
    if (at < offsetof(BoardFile, rows) || at > BoardFile::shown_bytes()) return nullptr;
    auto board = std::make_unique<BoardFile>();
    std::memcpy(static_cast<void*>(board.get()), bytes.data(), at);
    const std::uint64_t ranks = board->ranks.load();
    if (board->magic.load() != BoardFile::right_magic || ranks < 1 || ranks > protocol::max_ranks)
        return nullptr;
    return board;
}

// It has not come, or takes part no longer.
bool absent(const RunningRank& rank) {
    return rank.process == 0 || rank.left || !rank.alive;
}

RunningRank rank_of(const BoardFile& board, unsigned rank, int copy) {
    const BoardFile::Row& row = board.rows[rank];
    RunningRank found;
    found.rank = static_cast<int>(rank);
    if (row.state.load() == BoardFile::absent) return found;
    found.process = board.process_of(rank).process;
    found.left = row.state.load() == BoardFile::left;
    found.alive =
        found.left ? driver::still_runs(board.process_of(rank)) : collective::lives(board, rank, copy);
    found.place = row.place.load();
    found.enqueued = row.enqueued.load();
    found.done = std::min<std::uint64_t>(row.done.load(), found.enqueued);
    found.error = row.error.load();
    if (const auto last = board.last(rank)) found.last = last->text();
    const auto oldest = board.oldest_unfinished(rank);
    if (!oldest || absent(found)) return found;
    // It may have been enqueued long before its turn came.
    const std::uint64_t since = std::max(oldest->time_ns, row.moved_ns.load());
    const std::uint64_t now = collective::steady_ns();
    found.waiting_s = now > since ? static_cast<double>(now - since) / 1e9 : 0;
    return found;
}

// Who waits for whom.
class Waits {
public:
    Waits(const BoardFile& board, const std::vector<RunningRank>& ranks) : board_(board), ranks_(ranks) {
        for (const RunningRank& rank : ranks) {
            if (rank.waiting_s < stuck_from_s || !rank.error.empty()) continue;
            const auto oldest = oldest_of(rank.rank);
            if (!oldest) continue;
            // Ranks that wait in the same operation are spoken of together; a pair is each rank's own.
            const bool pair = oldest->collective == Collective::send_recv;
            Wait& wait = waits_[{oldest->step, pair ? rank.rank : -1}];
            wait.ranks.push_back(rank.rank);
            wait.noted = *oldest;
            wait.longest_s = std::max(wait.longest_s, rank.waiting_s);
            wait.known = wait.known && knows(rank);
        }
    }

    // Of `only`, or of all.
    std::string text(std::optional<int> only = std::nullopt) const {
        std::vector<std::string> sentences;
        for (const auto& [place, wait] : waits_)
            if (!only || std::find(wait.ranks.begin(), wait.ranks.end(), *only) != wait.ranks.end())
                sentences.push_back(sentence(wait));
        return fmt::format("{}", fmt::join(sentences, "; "));
    }

private:
    struct Wait {
        std::vector<int> ranks;
        Noted noted;
        double longest_s = 0;
        bool known = true;  // that it is this operation, and none behind it
    };

    std::optional<Noted> oldest_of(int rank) const {
        return board_.oldest_unfinished(static_cast<unsigned>(rank));
    }
    std::uint64_t steps_of(int rank) const { return board_.rows[rank].steps.load(); }

    // Whether the oldest operation that is not known to have ended is the one that runs.
    bool knows(const RunningRank& rank) const {
        return board_.rows[rank.rank].counts.load() != 0 || rank.enqueued - rank.done <= 1;
    }

    static std::string there(const RunningRank& rank, const std::string& where) {
        return fmt::format("rank {} (process {}, {})", rank.rank, rank.process, where);
    }
    static std::string missing(const RunningRank& rank) {
        if (rank.process == 0) return fmt::format("rank {} (not there)", rank.rank);
        return there(rank, rank.left ? "left" : "dead");
    }

    // How far a rank is that has not come to an operation of all; empty: it has.
    std::string behind(const RunningRank& rank, const Noted& noted) const {
        if (absent(rank)) return missing(rank);
        const std::uint64_t steps = steps_of(rank.rank);
        if (steps < noted.step)
            return there(rank,
                         steps == 0 ? "before its first operation" : fmt::format("at operation {}", steps));
        // It has called it, and is not there yet.
        const auto own = oldest_of(rank.rank);
        return own && own->step < noted.step && knows(rank) ? there(rank, "in " + own->numbered()) : "";
    }

    // Those of a pair that are not in a pair with `rank`, or all: one may have sent what the other does not
    // expect.
    std::vector<std::string> partners(const Noted& noted, int rank) const {
        std::vector<std::string> late;
        std::vector<std::string> met;
        for (const RunningRank& peer : ranks_) {
            if ((noted.peers >> peer.rank & 1) == 0 || peer.rank == rank) continue;
            const auto own = oldest_of(peer.rank);
            const auto last = board_.last(static_cast<unsigned>(peer.rank));
            if (absent(peer))
                late.push_back(missing(peer));
            else if (own && own->collective == Collective::send_recv && (own->peers >> rank & 1) != 0)
                met.push_back(there(peer, "in " + own->numbered()));
            else if (own)
                late.push_back(there(peer, "in " + own->numbered()));
            else
                late.push_back(
                    there(peer, last ? "idle after " + last->numbered() : "before its first operation"));
        }
        return late.empty() ? met : late;
    }

    std::string sentence(const Wait& wait) const {
        const bool one = wait.ranks.size() == 1;
        const std::string who = fmt::format("rank{} {}", one ? "" : "s", fmt::join(wait.ranks, ", "));
        std::vector<std::string> late;
        if (wait.noted.collective != Collective::send_recv) {
            for (const RunningRank& rank : ranks_)
                if (std::string where = behind(rank, wait.noted); !where.empty())
                    late.push_back(std::move(where));
        } else if (wait.known) {
            late = partners(wait.noted, wait.ranks.front());
        }
        if (!late.empty())
            return fmt::format("{} wait{} for {} since {:.0f} s, in {}", who, one ? "s" : "",
                               fmt::join(late, ", "), wait.longest_s, wait.noted.numbered());
        if (wait.known)
            return fmt::format("{} for {:.0f} s in {}", who, wait.longest_s, wait.noted.numbered());
        return fmt::format("{} {} not been idle for {:.0f} s, with several operations enqueued since {}{}",
                           who, one ? "has" : "have", wait.longest_s, wait.noted.numbered(), slowest(wait));
    }

    // Of several operations enqueued one cannot tell which one runs; the rank that has called the fewest is
    // waited for at the latest in the first that it has not called.
    std::string slowest(const Wait& wait) const {
        const auto fewer = [this](const RunningRank& a, const RunningRank& b) {
            return steps_of(a.rank) < steps_of(b.rank);
        };
        const RunningRank& last = *std::min_element(ranks_.begin(), ranks_.end(), fewer);
        const std::uint64_t steps = steps_of(last.rank);
        if (steps >= steps_of(wait.ranks.front())) return {};
        const auto missed = board_.find_step(static_cast<unsigned>(wait.ranks.front()), steps + 1);
        return fmt::format("; {} has not called {}", there(last, fmt::format("at operation {}", steps)),
                           missed ? missed->numbered() : fmt::format("operation {}", steps + 1));
    }

    const BoardFile& board_;
    const std::vector<RunningRank>& ranks_;
    std::map<std::pair<std::uint64_t, int>, Wait> waits_;
};

RunningGroup group_from(const BoardFile& board, int copy) {
    RunningGroup group;
    group.name = board.name.load();
    group.id = board.id.load();
    for (unsigned rank = 0; rank < board.how_many(); ++rank)
        group.ranks.push_back(rank_of(board, rank, copy));
    group.stuck = Waits(board, group.ranks).text();
    return group;
}

}  // namespace

namespace collective {

double waiting_s(const BoardFile& board, unsigned rank) {
    const BoardFile::Row& row = board.rows[rank];
    const auto oldest = board.oldest_unfinished(rank);
    const auto last = board.last(rank);
    if (!oldest || !last) return 0;
    std::uint64_t since = std::max(oldest->time_ns, row.moved_ns.load());
    if (row.counts.load() == 0 && row.enqueued.load() - row.done.load() > 1) {
        // Some of them may have ended: as long as every rank that takes part calls more, all goes well.
        std::uint64_t slowest = last->time_ns;
        for (unsigned other = 0; other < board.how_many(); ++other) {
            if (last->collective == Collective::send_recv && (last->peers >> other & 1) == 0) continue;
            const auto theirs = board.last(other);
            slowest = std::min(slowest, theirs ? theirs->time_ns : 0);
        }
        since = std::max(since, slowest);
    }
    const std::uint64_t now = steady_ns();
    return now > since ? static_cast<double>(now - since) / 1e9 : 0;
}

std::string waits_of(const BoardFile& board, unsigned rank) {
    const RunningGroup group = group_from(board, -1);
    return Waits(board, group.ranks).text(static_cast<int>(rank));
}

}  // namespace collective

Result<std::vector<RunningGroup>> running_groups(const std::string& peer_folder) {
    SIDESTEP_TRY(const base::Environment environment, base::Environment::read());
    const std::string& wanted = peer_folder.empty() ? environment.peer_folder : peer_folder;
    // Where nobody has made it there is no group; something else of that name is a mistake. Asked first: it may be
    // made meanwhile.
    const bool absent = wanted.empty() || ::access(wanted.c_str(), F_OK) != 0;
    auto folder = peer::Folder::open(wanted, false);
    if (!folder && folder.error().code == ErrorCode::not_found && absent) return std::vector<RunningGroup>();
    if (!folder) return folder.error();
    const std::unique_ptr<DIR, Closed> listing(::opendir(folder->path().c_str()));
    if (!listing) return driver::system_error(errno, "the folder of groups cannot be read", folder->path());
    std::set<std::string> names;
    for (const dirent* entry = ::readdir(listing.get()); entry != nullptr; entry = ::readdir(listing.get()))
        if (entry->d_name[0] != '.' && names.size() < max_groups * protocol::max_ranks)
            names.insert(entry->d_name);
    std::vector<RunningGroup> groups;
    for (const std::string& name : names) {
        const std::string path = folder->socket_of(name);
        if (group_of(name).empty() || !name.ends_with(".board")) {
            (void)folder->tidy(name);  // of a rank that died while it joined, or of a dead publisher
            continue;
        }
        const driver::Fd copy(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
        const auto board = read_board(copy);
        if (!board) continue;  // of another version, or being made
        if (collective::nobody_left(*board, copy.get()))
            ::unlink(path.c_str());
        else if (groups.size() < max_groups)
            groups.push_back(group_from(*board, copy.get()));
    }
    return groups;
}

}  // namespace sidestep
