// The thread beside each rank: talks to the others' service threads, notices who died, what went wrong and what is
// due, and stays after the rank has left until nobody uses its memory any more.
#pragma once

#include <deque>
#include <future>
#include <mutex>
#include <thread>

#include "collective/ending.hpp"
#include "collective/exchanges.hpp"
#include "collective/reachability.hpp"
#include "collective/rendezvous.hpp"
#include "collective/stall_watch.hpp"
#include "collective/verdict.hpp"

namespace sidestep::collective {

// All that belongs to one rank of one group. Made by joining.
struct RankResources {
    unsigned rank = 0;
    unsigned ranks = 1;
    std::string name;                      // of this rank, for people
    std::chrono::milliseconds timeout{0};  // 0: none
    Contacts contacts;
    std::optional<Board> board;
    std::unique_ptr<Imports> imports;
    std::unique_ptr<backend::Seat> seat;  // after the imports, so that it goes first: its tasks may use them
    std::unique_ptr<Reachability> reachability;
    Verdict verdict;

    std::string name_of_rank(unsigned r) const {
        return r == rank || !contacts[r] ? name : contacts[r]->who();
    }
};

class ServiceThread {
public:
    explicit ServiceThread(std::unique_ptr<RankResources> own);
    // Waits for the thread: leave() comes first, where it was started. Not in a child that was forked: there nothing
    // is freed.
    ~ServiceThread();
    ServiceThread(const ServiceThread&) = delete;
    ServiceThread& operator=(const ServiceThread&) = delete;

    // All that may fail; the thread that there is afterwards does nothing yet.
    Result<void> prepare();
    // After prepare(), once all ranks have joined.
    void start();

    RankResources& own() { return *own_; }
    const RankResources& own() const { return *own_; }
    void wake() const { waker_->wake(); }

    // Any thread: ends the group, here and on the others, unless it has ended.
    void fail(const Error& error);
    // Whether it has ended, on any of its ranks; also looks for a fault that was not seen yet.
    Result<void> status();
    // Whether all tasks have ended; notes on the board that they have.
    Result<bool> idle();
    // The same, and those of the graphs that were launched so far.
    Result<bool> at_rest();

    // Whether tasks may be at work on the caller's memory: this rank's, and those of other ranks of this
    // process, which use the memory where it is. For a group that has failed.
    bool in_use();

    // What ranks agree on to make other groups.
    Exchanges& exchanges() { return exchanges_; }

    // The rank calls nothing any more, and none of its tasks is under way. Returns at once; the thread ends
    // when the others have let go, at the latest at `until`.
    void leave(driver::LocalSocket::Time until);
    // Not later than this.
    void hurry(driver::LocalSocket::Time until);
    // For ranks of other processes not longer than this: what they have mapped stays theirs, also when it is
    // freed here.
    void leave_other_processes_behind(driver::LocalSocket::Time until);
    // The rank has died or left.
    bool absent(unsigned rank) const { return (absent_.load(std::memory_order_relaxed) >> rank & 1) != 0; }
    // Waits for the end of the thread, which finished() says is near. Any thread.
    void join();
    // This is a child of the process that the rank belongs to.
    bool forked() const { return maker_.forked(); }
    bool finished() const { return finished_.load(std::memory_order_acquire); }

private:
    struct Peer {
        bool closed = false;      // its end of the connection is gone
        bool left = false;        // it said goodbye
        bool let_go = false;      // this rank has nothing mapped of it any more
        bool forgotten = false;   // it has nothing mapped of this rank
        std::uint64_t steps = 0;  // its operations of all, when it left
        // When its process was seen to have ended by exit(), of the machine's steady clock; 0: it said goodbye.
        std::uint64_t ended_ns = 0;
        driver::Fd process;  // readable once it has ended; empty where that cannot be watched
    };
    struct Outgoing {
        std::string bytes;
        int descriptor = -1;
        std::shared_ptr<const void> keeps;
    };

    Exchanges::Surroundings surroundings();
    void serve();
    void wait_for_news();
    void read_messages(unsigned rank);
    void handle(unsigned rank, const Message& message, driver::LocalMessage& received);
    Result<void> take_share(unsigned rank, const Message& message, const driver::LocalMessage& received);
    Error lies(unsigned rank, const std::string& what) const;
    void on_disconnect(unsigned rank);
    void settle_fault();
    void fail_for(const protocol::FaultRecord& record);
    void take_end_from_board();
    void look_at_board();
    void tell_of_stall();
    void show_board();
    Result<bool> note_ended();
    void release_departed();
    bool all_let_go() const;
    void end();
    void queue(unsigned rank, Message message, int descriptor = -1,
               std::shared_ptr<const void> keeps = nullptr);
    void flush();
    void end_here(const Error& error);

    std::unique_ptr<RankResources> own_;
    std::unique_ptr<driver::Waker> waker_;
    std::vector<Peer> peers_;  // the thread's own, as the next one is
    StallWatch stall_;
    driver::LocalSocket::Time next_show_{};

    std::mutex mutex_;  // guards what follows
    std::vector<std::deque<Outgoing>> outbox_;
    bool leaving_ = false;
    driver::LocalSocket::Time leave_until_{};
    driver::LocalSocket::Time others_until_ = driver::LocalSocket::Time::max();  // of other processes

    Exchanges exchanges_;
    std::atomic<std::uint32_t> absent_{0};  // bit r: rank r has died or left
    std::atomic<bool> finished_{false};
    const ending::Maker maker_;
    std::mutex joining_;
    std::promise<bool> started_;  // false: the thread ends without having begun
    bool begun_ = false;
    std::thread thread_;
};

}  // namespace sidestep::collective
