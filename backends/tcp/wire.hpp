// One socket of a link: frames in and out.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "backend/rails.hpp"
#include "backends/tcp/walk.hpp"
#include "driver/event_loop.hpp"
#include "driver/tls_socket.hpp"

namespace sidestep::backends::tcp {

// Any thread.
class Wire final : public backend::Rail {
public:
    Wire(driver::TlsSocket socket, driver::EventLoop& loop);

    Result<void> watch(Run run) override;
    Bytes queued() const override { return queued_.load(std::memory_order_relaxed); }
    Result<void> send(const backend::Frame& frame, const void* payload, std::function<void()> sent) override;
    Result<void> send_all(std::span<const backend::Outgoing> frames, std::function<void()> sent) override;
    Result<void> look(backend::LinkOwner& owner) override;
    // There is one at most.
    bool resume(bool all) override;
    bool lives() override;
    std::string over() const override { return std::string(socket_.words()); }
    void shut_down() const override { socket_.socket().shut_down(); }
    void end() override;

private:
    // One call of the kernel brings many small frames. Of a large one so much is read straight to its place, without a copy; and
    // no more than that of the next behind a large one.
    static constexpr std::size_t buffer_bytes = std::size_t{128} << 10;
    static constexpr std::size_t direct_bytes = std::size_t{16} << 10;
    static constexpr Bytes sent_at_once = Bytes{64} << 10;
    // In one call of the kernel: what it copies is still in the processor's cache when the other end reads it.
    static constexpr Bytes most_a_call = Bytes{256} << 10;
    // Frames that may wait for others wait together: so many of them, so many bytes, and for so long.
    static constexpr std::size_t most_held = 16;
    static constexpr Bytes most_held_bytes = Bytes{16} << 10;
    static constexpr std::chrono::microseconds longest_held{50};
    static constexpr std::chrono::microseconds shortest_held{5};  // where somebody waits
    // Behind such frames the loop's thread leaves the socket to somebody who waits for something small, if he has looked not long ago:
    // he looks again when what he waits for has not come, which may be many copies later.
    static constexpr std::chrono::microseconds left_for{300};
    static constexpr std::chrono::microseconds looked_within{1000};
    static constexpr std::size_t most_waiting = std::size_t{1} << 20;  // frames
    static constexpr int most_reads = 64;  // of the socket in one call of look(): others are served too

    struct Waiting {
        std::array<unsigned char, backend::frame_bytes> head;
        backend::Memory payload;  // no address where it is in parts
        std::vector<backend::Memory> parts;
        Bytes gone = 0;                                        // of head and payload
        decltype(backend::Outgoing::finish) finish = nullptr;  // the head; null once it is made
        std::function<void()> sent;

        Bytes left() const { return head.size() + payload.size - gone; }
        Walk::Parts all_parts() const { return parts.empty() ? std::span(&payload, 1) : std::span(parts); }
    };
    enum class Move { went_on, nothing_there, must_wait };

    using Clock = std::chrono::steady_clock;

    Result<void> serve(backend::LinkOwner& owner, driver::EventLoop::Ready ready);
    enum class Looks { loop, waiter };
    Result<void> take(backend::LinkOwner& owner, Looks who);
    bool is_left_to_waiter() const;
    // With the mutex held. False where what waits is to go now, with what was held before.
    bool hold();
    bool was_held_for(std::chrono::microseconds time) const {
        return held_.load(std::memory_order_relaxed) &&
               Clock::now() - held_since_.load(std::memory_order_relaxed) >= time;
    }
    // What is held has to go, or nothing has been held for long enough that the loop may sleep.
    bool held_is_due() const;
    Result<void> look_at_held();
    // With the mutex held.
    void enqueue(const backend::Outgoing& out, std::function<void()> sent);
    using Told = std::vector<std::function<void()>>;
    // What waits goes out, as much as is taken.
    Result<void> flush();
    // With the mutex held, but not while the kernel copies: others add more meanwhile. What is to be called afterwards is added
    // to `told`. Where one thread is at it already, that one goes on. `all`: not only what one call takes.
    Result<void> flush(std::unique_lock<std::mutex>& lock, Told& told, bool all);
    static void finish(Waiting& out);
    Result<bool> send_some(std::unique_lock<std::mutex>& lock, Told& told);
    void take_off(Bytes bytes, Told& told);
    void wait_for(bool in, bool out);
    bool pause(unsigned resumed);
    // On the loop's thread, soon.
    void look_again();
    bool needs_socket() const;
    Result<void> take_in(backend::LinkOwner& owner);
    Result<Move> step(backend::LinkOwner& owner);
    Result<Move> take_frame(backend::LinkOwner& owner);
    Result<Move> take_payload(backend::LinkOwner& owner);
    // What follows the frame goes there, from now on.
    void land(backend::Landing landing);
    Walk::Parts places() const {
        return landing_.parts.empty() ? std::span(&whole_, 1) : std::span(landing_.parts);
    }
    // Bytes of what follows that have come.
    void step_on(Bytes bytes);
    void take_from_buffer(Bytes bytes);
    Result<Move> take_from_socket(Bytes bytes);
    Result<Move> fill_buffer();
    Result<void> complete(backend::LinkOwner& owner);

    driver::TlsSocket socket_;
    driver::EventLoop& loop_;
    driver::EventLoop::Id id_ = 0;
    Run run_;  // constant from watch() on

    // Held by whoever is in look(), and from end() on for good; a flag, since its holder may come back here.
    std::atomic_flag receiving_;
    using Memory = std::unique_ptr<unsigned char[]>;
    Memory buffer_;          // of the thread that looks; null where nobody does, and nothing is in it
    std::size_t begin_ = 0;  // of what is in the buffer
    std::size_t end_ = 0;
    bool drained_ = false;  // the socket had no more
    bool failed_ = false;   // nothing of it is looked at any more
    bool in_frame_ = false;
    backend::Frame frame_;
    backend::Landing landing_;
    backend::Memory whole_;  // the place where there are no parts
    Bytes there_ = 0;        // of what follows the frame
    Walk walk_;              // through its places
    std::atomic<unsigned> resumed_{0};

    // What the loop's thread reads again and again is apart from what each frame changes.
    static constexpr std::size_t line = 64;
    alignas(line) std::atomic<bool> large_{false};  // the last frame
    std::atomic<Clock::time_point> looked_at_{};    // by somebody who waits
    std::atomic<bool> held_{false};  // all in the queue but those; written with the mutex held, as the next
    std::atomic<Clock::time_point> held_since_{};

    alignas(line) std::atomic<Bytes> queued_{0};
    int silent_ = 0;    // seconds; lives() alone
    std::mutex mutex_;  // guards what follows
    std::deque<Waiting> queue_;
    bool in_ = true;  // what the loop waits for
    bool out_ = false;
    bool sending_ = false;
    // Frames at the front of the queue that the kernel is given now, and their bytes, where those are all that are to go.
    std::size_t going_ = 0;
    Bytes going_bytes_ = 0;
    bool loop_looks_ = false;  // at what is held
    bool dead_ = false;
};

}  // namespace sidestep::backends::tcp
