#include "backends/tcp/wire.hpp"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "base/try.hpp"

namespace sidestep::backends::tcp {

using backend::Frame;
using backend::Landing;
using driver::TcpSocket;

namespace {

// Where a round trip takes no longer, so much on its way fills a link of 100 Gb/s: 512 KiB over 8 sockets in 300 us are 14 GB/s. More
// would only leave the processor's cache before it is read. A quicker link with so long a round trip is bounded by it.
constexpr auto short_trip = std::chrono::microseconds(300);
constexpr Bytes short_trip_buffers = Bytes{512} << 10;
// Seconds without a sign of life, after which a connection is over: the kernel would wait a quarter of an hour.
constexpr int most_silent = 5;

}  // namespace

Wire::Wire(driver::TlsSocket socket, driver::EventLoop& loop) : socket_(std::move(socket)), loop_(loop) {
    const TcpSocket& plain = socket_.socket();
    if (const auto trip = plain.round_trip(); trip && *trip <= short_trip)
        plain.bound_buffers(short_trip_buffers);
    plain.keep_alive(std::chrono::seconds(most_silent));
}

// A look each second: what was sent a moment ago after a long silence has not been answered yet either.
bool Wire::lives() {
    const auto unheard = socket_.socket().unheard();
    silent_ = unheard && *unheard >= std::chrono::seconds(1) ? silent_ + 1 : 0;
    return silent_ < most_silent;
}

// A step may be made before the loop has said what it is called: whoever needs the number waits for the mutex.
Result<void> Wire::watch(Run run) {
    std::lock_guard lock(mutex_);
    run_ = std::move(run);
    SIDESTEP_TRY(
        id_,
        loop_.add(socket_.socket().number(), true, false, [go = run_, this](driver::EventLoop::Ready ready) {
            if (ready.look && !held_is_due()) return;
            go([this, ready](backend::LinkOwner& owner) { return serve(owner, ready); });
        }));
    return {};
}

// The loop would call again and again after an end.
Result<void> Wire::serve(backend::LinkOwner& owner, driver::EventLoop::Ready ready) {
    if (ready.ended)
        return Error{ErrorCode::io_error, "the connection to the other machine has ended", "tcp", {}};
    if (ready.look) return look_at_held();
    if (ready.out) SIDESTEP_CHECK(flush());
    if (!ready.in || is_left_to_waiter()) return {};
    return take(owner, Looks::loop);
}

// Where many small frames are under way two threads would take turns at the same requests, which costs more than it spares
// (docs/lab-book.md, "Between machines, over TCP"). Bytes of something large would keep the waiter from what he waits for.
bool Wire::is_left_to_waiter() const {
    const auto now = Clock::now();
    if (large_.load(std::memory_order_relaxed) ||
        now - held_since_.load(std::memory_order_relaxed) >= left_for ||
        now - looked_at_.load(std::memory_order_relaxed) >= looked_within)
        return false;
    std::this_thread::yield();
    return true;
}

void Wire::enqueue(const backend::Outgoing& out, std::function<void()> sent) {
    Waiting& next = queue_.emplace_back();
    next.head = backend::to_bytes(out.frame);
    next.payload = {const_cast<void*>(out.payload), out.frame.has_payload() ? out.frame.size : 0};
    next.parts = out.parts;
    next.finish = out.finish;
    next.sent = std::move(sent);
}

Result<void> Wire::send(const Frame& frame, const void* payload, std::function<void()> sent) {
    const backend::Outgoing one{frame, payload};
    return send_all({&one, 1}, std::move(sent));
}

Result<void> Wire::send_all(std::span<const backend::Outgoing> frames, std::function<void()> sent) {
    Bytes size = 0;
    for (const backend::Outgoing& out : frames) size += out.frame.has_payload() ? out.frame.size : 0;
    Told told;
    Result<void> done;
    {
        std::unique_lock lock(mutex_);
        if (dead_) return {};
        if (queue_.size() >= most_waiting)
            return Error{ErrorCode::io_error, "the other machine takes nothing any more", "tcp", {}};
        const bool first = queue_.size() == going_ || held_;
        queued_.fetch_add(size + frames.size() * backend::frame_bytes, std::memory_order_relaxed);
        for (const backend::Outgoing& out : frames.first(frames.size() - 1)) enqueue(out, {});
        enqueue(frames.back(), std::move(sent));
        if (first && frames.size() == 1 && frames.front().may_wait && hold()) return {};
        held_ = false;
        if (first && size <= sent_at_once)
            done = flush(lock, told, false);
        else if (!sending_)  // who sends looks at what is left
            wait_for(in_, true);
    }
    for (const auto& tell : told) tell();
    return done;
}

// One frame costs the kernel nearly as much as many: each by itself, copies of 8 B went at 65,000 to 81,000 a second with 64 under way
// (docs/lab-book.md, "Between machines, over TCP").
bool Wire::hold() {
    if (queue_.size() - going_ >= most_held || queued() - going_bytes_ > most_held_bytes) return false;
    if (held_) return true;
    if (!loop_looks_ && !(loop_looks_ = loop_.look_at(id_, true))) return false;
    held_since_ = Clock::now();
    held_ = true;
    return true;
}

bool Wire::held_is_due() const {
    const auto time = held_.load(std::memory_order_relaxed) ? longest_held : left_for;
    return Clock::now() - held_since_.load(std::memory_order_relaxed) >= time;
}

Result<void> Wire::look_at_held() {
    {
        std::lock_guard lock(mutex_);
        if (!held_is_due()) return {};
        if (!held_) {
            loop_looks_ = false;
            loop_.look_at(id_, false);
            return {};
        }
    }
    return flush();
}

Result<void> Wire::flush() {
    Told told;
    Result<void> done;
    {
        std::unique_lock lock(mutex_);
        done = flush(lock, told, true);
    }
    for (const auto& tell : told) tell();
    return done;
}

Result<void> Wire::flush(std::unique_lock<std::mutex>& lock, Told& told, bool all) {
    if (sending_ || dead_) return {};
    sending_ = true;
    held_ = false;
    Result<bool> took = true;
    do took = send_some(lock, told);
    while (took && *took && all && !queue_.empty() && !held_ && !dead_);
    sending_ = false;
    if (!took) return took.error();
    if (!*took) held_ = false;  // it is behind what is left
    wait_for(in_, !queue_.empty() && !held_);
    return {};
}

// Whether the kernel took all of it. What is in the queue stays where it is: others only add to it.
Result<bool> Wire::send_some(std::unique_lock<std::mutex>& lock, Told& told) {
    constexpr std::size_t most_parts = 256;
    std::array<TcpSocket::Part, most_parts> parts;
    std::size_t count = 0;
    Bytes room = most_a_call;
    Bytes given = 0;
    std::vector<Waiting*> unfinished;
    for (Waiting& out : queue_) {
        if (count + 2 > most_parts || room == 0) break;
        if (out.finish != nullptr) unfinished.push_back(&out);
        if (out.gone < out.head.size())
            parts[count++] = {out.head.data() + out.gone, out.head.size() - out.gone};
        Walk walk;
        walk.step_on(out.all_parts(), out.gone - std::min<Bytes>(out.gone, out.head.size()));
        const Bytes left = std::min(out.left(), out.payload.size);
        const Bytes listed = walk.list(out.all_parts(), std::min(left, room), parts, count);
        room = listed < left ? 0 : room - listed;
    }
    for (std::size_t i = 0; i < count; ++i) given += parts[i].size;
    going_ = given == queued() ? queue_.size() : 0;
    going_bytes_ = going_ > 0 ? given : 0;
    lock.unlock();
    for (Waiting* const out : unfinished) finish(*out);
    const auto sent = socket_.send({parts.data(), count});
    lock.lock();
    going_ = 0;
    going_bytes_ = 0;
    if (!sent) return sent.error();
    take_off(*sent, told);
    return *sent == given;
}

// Nothing of it has gone: the head is the first. Nobody else touches what is in the queue.
void Wire::finish(Waiting& out) {
    const auto frame = backend::parse_frame(out.head.data());
    if (frame) out.head = backend::to_bytes(out.finish(*frame, out.payload.address));
    out.finish = nullptr;
}

void Wire::take_off(Bytes bytes, Told& told) {
    queued_.fetch_sub(bytes, std::memory_order_relaxed);
    while (bytes > 0) {
        Waiting& out = queue_.front();
        const Bytes step = std::min(bytes, out.left());
        out.gone += step;
        bytes -= step;
        if (out.left() > 0) return;
        if (out.sent) told.push_back(std::move(out.sent));
        queue_.pop_front();
    }
}

void Wire::wait_for(bool in, bool out) {
    if (dead_ || (in == in_ && out == out_)) return;
    in_ = in;
    out_ = out;
    loop_.change(id_, in, out);
}

Result<void> Wire::look(backend::LinkOwner& owner) {
    if (was_held_for(shortest_held)) SIDESTEP_CHECK(flush());
    return take(owner, Looks::waiter);
}

Result<void> Wire::take(backend::LinkOwner& owner, Looks who) {
    // What it takes in ends pieces, and whoever is told of an end looks.
    thread_local const Wire* inside = nullptr;
    if (inside == this) return {};
    // Whoever is in there takes in what has come; the loop calls again as long as something is left.
    if (receiving_.test_and_set(std::memory_order_acquire)) {
        std::this_thread::yield();
        return {};
    }
    if (who == Looks::waiter) looked_at_.store(Clock::now(), std::memory_order_relaxed);
    // Few threads look at many sockets: the buffer is the thread's, but for what waits in it.
    thread_local Memory spare;
    if (!buffer_)
        buffer_ = spare ? std::move(spare) : std::make_unique_for_overwrite<unsigned char[]>(buffer_bytes);
    const Error has_failed{ErrorCode::io_error, "the connection has failed", "tcp", {}};
    const Wire* const outside = std::exchange(inside, this);
    const Result<void> done = failed_ ? Result<void>(has_failed) : take_in(owner);
    inside = outside;
    failed_ = !done;
    if (begin_ == end_) spare = std::move(buffer_);
    receiving_.clear(std::memory_order_release);
    return done;
}

// It stops only when the rest is still in the socket: bytes left in the buffer would wake no thread.
Result<void> Wire::take_in(backend::LinkOwner& owner) {
    drained_ = false;
    for (int reads = 0; !needs_socket() || (reads < most_reads && !drained_);) {
        if (needs_socket()) ++reads;
        const unsigned resumed = resumed_.load(std::memory_order_acquire);
        SIDESTEP_TRY(const Move stepped, step(owner));
        if (stepped == Move::nothing_there) break;
        if (stepped == Move::must_wait && pause(resumed)) return {};
    }
    if (socket_.holds()) look_again();
    return {};
}

void Wire::look_again() {
    loop_.post(
        [go = run_, this] { go([this](backend::LinkOwner& owner) { return take(owner, Looks::loop); }); });
}

// The next step reads the socket.
bool Wire::needs_socket() const {
    if (!in_frame_) return end_ - begin_ < backend::frame_bytes;
    return landing_.kind != Landing::Kind::later && begin_ == end_ && there_ < frame_.size;
}

// Not where somebody called resume() since that number was read.
bool Wire::pause(unsigned resumed) {
    std::lock_guard lock(mutex_);
    if (resumed_.load(std::memory_order_acquire) != resumed) return false;
    wait_for(false, out_);
    return true;
}

bool Wire::resume(bool) {
    std::lock_guard lock(mutex_);
    resumed_.fetch_add(1, std::memory_order_release);
    if (in_ || dead_) return false;
    wait_for(true, out_);
    // What is in the buffer makes no socket readable.
    look_again();
    return true;
}

Result<Wire::Move> Wire::step(backend::LinkOwner& owner) {
    if (!in_frame_) return take_frame(owner);
    if (landing_.kind == Landing::Kind::later) {
        SIDESTEP_TRY(auto landing, owner.landing(frame_));
        if (landing.kind == Landing::Kind::later) return Move::must_wait;
        land(std::move(landing));
    }
    return take_payload(owner);
}

Result<Wire::Move> Wire::take_frame(backend::LinkOwner& owner) {
    if (end_ - begin_ < backend::frame_bytes) return fill_buffer();
    SIDESTEP_TRY(frame_, backend::parse_frame(buffer_.get() + begin_));
    begin_ += backend::frame_bytes;
    in_frame_ = true;
    large_.store(frame_.has_payload() && frame_.size > sent_at_once, std::memory_order_relaxed);
    land({});
    if (!frame_.has_payload()) {
        SIDESTEP_CHECK(complete(owner));
        return Move::went_on;
    }
    landing_.kind = Landing::Kind::later;  // it is asked for in the next step
    return Move::went_on;
}

void Wire::land(Landing landing) {
    landing_ = std::move(landing);
    whole_ = {landing_.address, frame_.size};
    there_ = 0;
    walk_ = {};
    step_on(0);  // past parts without bytes
}

void Wire::step_on(Bytes bytes) {
    there_ += bytes;
    if (landing_.kind == Landing::Kind::here) walk_.step_on(places(), bytes);
}

void Wire::take_from_buffer(Bytes bytes) {
    while (bytes > 0) {
        Bytes step = bytes;
        if (landing_.kind == Landing::Kind::here) {
            const backend::Memory place = walk_.next(places());
            step = std::min(bytes, place.size);
            std::memcpy(place.address, buffer_.get() + begin_, step);
        }
        begin_ += step;
        bytes -= step;
        step_on(step);
    }
}

Result<Wire::Move> Wire::take_from_socket(Bytes bytes) {
    std::array<TcpSocket::Room, backend::most_places> rooms;
    std::size_t count = 0;
    const Bytes wanted = walk_.list(places(), bytes, rooms, count);
    SIDESTEP_TRY(const auto came, socket_.receive({rooms.data(), count}));
    if (!came) return Move::nothing_there;
    if (*came == 0) return Error{ErrorCode::io_error, "the other machine hung up", "tcp", {}};
    step_on(*came);
    // The rest is not there yet: the loop says when it is.
    return *came < wanted ? Move::nothing_there : Move::went_on;
}

Result<Wire::Move> Wire::take_payload(backend::LinkOwner& owner) {
    const Bytes left = frame_.size - there_;
    if (const Bytes buffered = std::min<Bytes>(end_ - begin_, left); buffered > 0) {
        take_from_buffer(buffered);
    } else if (left >= direct_bytes && landing_.kind == Landing::Kind::here) {
        SIDESTEP_TRY(const Move move, take_from_socket(std::min(left, most_a_call)));
        if (move == Move::nothing_there) return move;
    } else if (left > 0) {
        return fill_buffer();
    }
    if (there_ == frame_.size) SIDESTEP_CHECK(complete(owner));
    return Move::went_on;
}

Result<Wire::Move> Wire::fill_buffer() {
    std::memmove(buffer_.get(), buffer_.get() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
    const std::size_t room = (frame_.size > sent_at_once ? direct_bytes : buffer_bytes) - end_;
    const TcpSocket::Room all{buffer_.get() + end_, room};
    SIDESTEP_TRY(const auto came, socket_.receive({&all, 1}));
    if (!came) return Move::nothing_there;
    if (*came == 0) return Error{ErrorCode::io_error, "the other machine hung up", "tcp", {}};
    drained_ = *came < room;
    end_ += *came;
    return Move::went_on;
}

Result<void> Wire::complete(backend::LinkOwner& owner) {
    in_frame_ = false;
    return owner.arrived(frame_, std::exchange(landing_, {}));
}

void Wire::end() {
    {
        std::lock_guard lock(mutex_);
        dead_ = true;
    }
    loop_.remove(id_);
    while (receiving_.test_and_set(std::memory_order_acquire)) std::this_thread::yield();
    // What these hold may come back here when it goes.
    landing_ = {};
    std::deque<Waiting> dropped;
    std::unique_lock lock(mutex_);
    while (sending_) {
        lock.unlock();
        std::this_thread::yield();
        lock.lock();
    }
    dropped.swap(queue_);
}

}  // namespace sidestep::backends::tcp
