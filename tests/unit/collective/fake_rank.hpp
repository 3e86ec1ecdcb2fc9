// A rank of a group that joins by the same messages as any other, and lies wherever a test wants it to. It runs in the
// test's own process; the ranks beside it are processes of their own.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "collective/board.hpp"
#include "collective/wire.hpp"
#include "driver/local_socket.hpp"
#include "driver/shared_pages.hpp"
#include "tests/chance.hpp"

namespace sidestep::collective {

// What it is about to say while it joins: a lie changes it.
struct Said {
    enum class At { hello, arena, ready };
    At at = At::hello;
    unsigned to = 0;
    Message message = {};
    std::vector<int> descriptors = {};
    int times = 1;                                 // 0: it says nothing
    std::function<void(std::string&)> spoil = {};  // of the bytes that go out
};
using Lie = std::function<void(Said&)>;

class FakeRank {
public:
    using Time = driver::LocalSocket::Time;
    FakeRank(std::string folder, const GroupId& id, unsigned rank, unsigned ranks);

    // False once another rank has refused or hung up, somebody has called give_up(), or a minute has passed.
    bool join(const Lie& lie);
    // Any thread.
    void give_up() { gave_up_ = true; }

    // Nothing happens where the other end is gone or takes nothing.
    void say(unsigned to, const Message& message, const std::vector<int>& descriptors = {}) {
        say_bytes(to, to_bytes(message), descriptors);
    }
    void say_to_all(const Message& message, const std::vector<int>& descriptors = {});
    void say_bytes(unsigned to, const std::string& bytes, const std::vector<int>& descriptors = {});
    // Nothing where the other end is gone, or says nothing until then.
    std::optional<Message> hear(unsigned from, Time until);
    void hang_up() { sockets_.clear(); }

    unsigned rank() const { return rank_; }
    unsigned ranks() const { return ranks_; }
    // Both once it has joined.
    BoardFile& board() { return board_->file(); }
    char* arena_of(unsigned rank) { return static_cast<char*>(arenas_[rank]->address()); }
    // Of this rank, to be said again.
    int arena() const { return arena_.get(); }
    std::string arena_offer() const;
    // What another rank said of itself.
    const Hello& hello_of(unsigned rank) const { return *hellos_[rank]; }

private:
    std::string socket_of(unsigned rank) const { return prefix_ + std::to_string(rank); }
    bool meet_lower(unsigned rank);
    bool meet_higher();
    bool take_hello(driver::LocalSocket socket, std::optional<unsigned> called);
    bool take_arena(unsigned from);
    void tell(Said said);
    std::optional<driver::LocalMessage> hear_whole(unsigned from, Time until);

    const std::string prefix_;
    const unsigned rank_;
    const unsigned ranks_;
    const Time until_;
    std::atomic<bool> gave_up_{false};
    bool waits() const { return !gave_up_ && std::chrono::steady_clock::now() < until_; }
    Lie lie_;
    std::optional<driver::LocalListener> listener_;
    std::optional<Board> board_;
    driver::Fd arena_;
    std::vector<std::optional<driver::LocalSocket>> sockets_;
    std::vector<std::optional<Hello>> hellos_;
    std::vector<std::optional<driver::SharedMap>> arenas_;
};

// Where the fields of an offer of memory lie in its bytes.
struct OfferField {
    static constexpr std::size_t on_gpu = 6, memory = 7, index = 8, size = 12, offset = 20, address = 36,
                                 has_descriptor = 60, scheme = 61;
};

template <typename Number>
void put_at(std::string& bytes, std::size_t at, Number number) {
    if (at + sizeof(number) <= bytes.size())
        bytes.replace(at, sizeof(number), reinterpret_cast<char*>(&number), sizeof(number));
}

// Changes some bytes, cuts, or adds.
void spoil(std::string& bytes, Chance& chance);

// Descriptors that are not what they are said to be.
class Zoo {
public:
    Zoo();
    struct Animal {
        const char* name;
        driver::Fd fd;
    };
    const std::vector<Animal>& animals() const { return animals_; }

private:
    void keep(const char* name, int fd) {
        if (fd >= 0) animals_.push_back({name, driver::Fd(fd)});
    }
    std::vector<Animal> animals_;
    driver::Fd server_;  // of a file system that hangs; closed first, which ends the hanging
};

// Zeros of so many bytes without pages behind them, with these seals; -1 where there can be none.
int make_memory(std::uint64_t bytes, unsigned flags, int seals);

}  // namespace sidestep::collective
