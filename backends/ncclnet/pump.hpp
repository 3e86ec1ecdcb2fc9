// The thread that a plugin is called on.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <sidestep/result.hpp>

namespace sidestep::backends::ncclnet {

// A plugin offers nothing to wait on, and is made for one polling thread. So this thread makes all calls, and
// polls while something is in flight: without a pause at first, then less and less often, at last once in a
// millisecond. With nothing in flight it sleeps until it gets work. A plugin that hangs stops this thread
// alone. Any thread may call; lives in a shared_ptr.
class Pump : public std::enable_shared_from_this<Pump> {
public:
    enum class Progress { nothing, waits, moved };
    // On the pump's thread.
    class Client {
    public:
        virtual ~Client() = default;
        // Goes on with what is in flight.
        virtual Progress turn() = 0;
        // Memory goes: nothing of it stays registered.
        virtual void forget(std::uint64_t range) = 0;
    };

    static Result<std::shared_ptr<Pump>> start();
    Pump() = default;
    Pump(const Pump&) = delete;
    Pump& operator=(const Pump&) = delete;

    // Soon, in the order of the calls. False where the thread has ended.
    bool post(std::function<void()> task);
    // Whether the call has been made within that time; if not, it is made later, or never. At once on the
    // pump's own thread. After one wait has timed out, no other caller waits.
    bool call(std::function<void()> task, std::chrono::milliseconds patience);
    std::chrono::milliseconds patience_now(std::chrono::milliseconds patience) const {
        return hangs_.load() ? patience.zero() : patience;
    }
    // How long the thread has been in its tasks and turns, without a look at anything else.
    std::chrono::milliseconds away() const;
    // A caller's wait has timed out.
    void hangs() { hangs_.store(true); }
    bool here() const { return std::this_thread::get_id() == id_; }
    // The thread ends when what was posted has been made. False where it hangs: it is left alone then, with this object.
    bool end(std::chrono::milliseconds patience);

    // On the pump's thread.
    void add(std::shared_ptr<Client> client) { clients_.push_back(std::move(client)); }
    void remove(const Client* client);
    void forget(std::uint64_t range);

private:
    void run();
    bool take_tasks();
    void pause(Progress progress);

    std::thread::id id_;  // constant once anybody can call
    std::thread thread_;
    std::vector<std::shared_ptr<Client>> clients_;  // of the thread alone, as the next
    std::chrono::steady_clock::time_point moved_{};

    std::atomic<std::chrono::steady_clock::rep> away_since_{0};  // 0: it is not
    std::atomic<bool> hangs_{false};                             // until the thread goes round again

    std::mutex mutex_;  // guards what follows
    std::condition_variable wake_;
    std::condition_variable over_;
    std::deque<std::function<void()>> tasks_;
    bool ending_ = false;
    bool ended_ = false;
};

}  // namespace sidestep::backends::ncclnet
