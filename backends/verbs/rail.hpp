// One queue pair of a link: frames in and out, and the socket that it was joined over.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "backend/rails.hpp"
#include "backends/verbs/card.hpp"
#include "backends/verbs/meeting.hpp"
#include "backends/verbs/memory.hpp"
#include "backends/verbs/message.hpp"
#include "driver/event_loop.hpp"
#include "driver/tcp_socket.hpp"

namespace sidestep::backends::verbs {

// What all rails over one card share.
struct Means {
    Card card;
    std::shared_ptr<PreparedMemory> prepared;
    std::shared_ptr<Bounces> bounces_out;
    std::shared_ptr<Bounces> bounces_in;  // others, so that two machines that wait for each other's go on
    std::shared_ptr<backend::LargeFrames> counts;  // of the engine
    std::chrono::milliseconds silence{};
    std::atomic<std::chrono::steady_clock::time_point> avoided{};  // until then: it lost a link
    backend::GpuDistances gpus{};                                  // from the card

    const std::string& name() const { return card.context->name(); }
    bool works() const { return std::chrono::steady_clock::now() >= avoided.load() && port_is_up(card); }
};
using Cards = std::vector<std::shared_ptr<Means>>;

// A frame with few bytes is one message, copied at both ends. Of one with more the receiver is told first (an offer);
// it answers where the bytes go, and the card writes them there. Any thread.
class Rail final : public backend::Rail, public std::enable_shared_from_this<Rail> {
public:
    // Says on the socket which of the cards there are now, and with which this is rail `number`; the other end's answer
    // comes to hear(). With one card its queue pair is made at once.
    static Result<std::shared_ptr<Rail>> create(const Cards& cards, std::size_t number,
                                                driver::TcpSocket socket, driver::EventLoop& loop);
    static constexpr std::uint32_t eager_bytes = 4096;
    ~Rail() override;
    Rail(const Rail&) = delete;
    Rail& operator=(const Rail&) = delete;

    Result<void> watch(Run run) override;
    int distance(const void* payload, unsigned to_gpu) const override;
    std::string over() const override;
    Bytes queued() const override { return queued_.load(std::memory_order_relaxed); }
    Result<void> send(const backend::Frame& frame, const void* payload, std::function<void()> sent) override;
    Result<void> send_all(std::span<const backend::Outgoing> frames, std::function<void()> sent) override;
    Result<void> look(backend::LinkOwner& owner) override {
        looks_.fetch_add(1, std::memory_order_relaxed);
        return turn(owner, false);
    }
    bool resume(bool all) override;
    // Sends nothing, which fails where the other end cannot be reached any more.
    void probe() override;
    void shut_down() const override { socket_.shut_down(); }
    // The card touches nothing afterwards either.
    void end() override;

private:
    static constexpr std::uint16_t receives =
        64;  // messages with frames that may come without being taken in
    static constexpr std::uint16_t most_open = 32;
    // Answers to offers and the ends of writes come beside those: of each offer one at a time, both ways.
    static constexpr std::size_t receive_buffers = receives + 2 * most_open + 2;
    static constexpr std::size_t send_buffers = receive_buffers;
    static constexpr std::size_t buffer_bytes = head_bytes + backend::frame_bytes + eager_bytes;
    static constexpr std::uint16_t kept_back = 1;  // credits, for the message that gives back credits
    static constexpr std::size_t most_waiting = std::size_t{1} << 20;  // frames
    static constexpr std::uint32_t wanted_inline = 220;

    // meeting: it is not known which card it goes over; joined: this end can receive, the other may not yet.
    enum class State { meeting, greeting, joined, open };
    // What a completion is of; the index in the lower half.
    enum class Work : std::uint64_t { receive, message, write, probe };

    struct Outgoing {
        backend::Frame frame;
        const unsigned char* payload = nullptr;
        std::function<void()> sent{};
        std::vector<backend::Memory> parts{};  // in place of the payload
        // Not before so many of those with few bytes: the list of its places is among them.
        std::uint64_t after = 0;
        Bytes size() const { return frame.has_payload() ? frame.size : 0; }
        void copy_to(unsigned char* to) const;
    };
    struct OfferOut {
        bool open = false;
        bool answered = false;
        Outgoing out;
        std::uint64_t address = 0;
        std::uint32_t key = 0;
        std::shared_ptr<const Prepared> region{};
        std::shared_ptr<Bounce> bounce{};
    };
    struct OfferIn {
        enum class State { none, asked, waits, granted };  // waits: for a buffer
        State state = State::none;
        backend::Frame frame;
        backend::Landing landing{};
        std::shared_ptr<const Prepared> region{};
        std::shared_ptr<Bounce> bounce{};
        std::chrono::steady_clock::time_point given{};  // the buffer
    };
    // Who was told `later`, or is to be asked: a message in its buffer, or an offer.
    struct Asked {
        backend::Frame frame;
        bool offer = false;
        std::size_t index = 0;  // of the buffer, or the offer
    };
    using Told = std::vector<std::function<void()>>;

    Rail(driver::TcpSocket socket, driver::EventLoop& loop) : socket_(std::move(socket)), loop_(loop) {}

    // rail.cpp: how it comes to be and ends.
    Result<void> introduce(const Cards& cards, std::size_t number);
    Result<void> make(std::size_t card);
    Result<void> make_pair();
    Result<void> watch_completions();
    Result<void> say(const unsigned char* bytes, std::size_t size) const;
    Result<void> greet();
    Result<void> hear(backend::LinkOwner& owner);
    Result<bool> hear_all(std::size_t size);
    Result<void> meet();
    Result<void> join(const Greeting& theirs);
    void keep_to(const Greeting& agreed);
    Result<void> tick(backend::LinkOwner& owner);
    void drain_failed();

    // rail_out.cpp; all but the first with the mutex held.
    Result<void> queue_and_flush(std::span<Outgoing> frames);
    Result<void> flush();
    Result<void> flush(Told& told);
    Result<bool> send_next(Told& told);
    Result<bool> send_small(Told& told);
    Result<bool> send_offer();
    Result<void> send_message(Head head, const backend::Frame* frame, const Outgoing* bytes);
    Result<void> send_answers();
    Result<void> give_credits();
    Result<void> write_next();
    Result<void> write(std::uint16_t number);
    Result<void> post(ibv_send_wr& request);
    std::function<void()> close_offer(std::uint16_t number);
    Result<void> arm_all();

    // rail_in.cpp: by whoever holds `polling_`.
    Result<void> serve(backend::LinkOwner& owner);
    Result<void> wait_again(backend::LinkOwner& owner);
    Result<void> turn(backend::LinkOwner& owner, bool must);
    Result<void> drain(backend::LinkOwner& owner, bool all);
    Result<void> take(backend::LinkOwner& owner, const ibv_wc& entry);
    Result<void> take_message(backend::LinkOwner& owner, std::size_t buffer, std::size_t size);
    Result<void> take_frame(backend::LinkOwner& owner, const Head& head, std::size_t buffer,
                            std::size_t size);
    Result<void> take_answer(const Head& head);
    Result<void> take_written(backend::LinkOwner& owner, std::uint32_t number, Bytes size);
    Result<void> ask(backend::LinkOwner& owner, Asked asked);
    Result<void> ask_again(backend::LinkOwner& owner);
    Result<void> land_message(backend::LinkOwner& owner, const Asked& asked, backend::Landing landing);
    Result<void> land_offer(backend::LinkOwner& owner, const Asked& asked, backend::Landing landing);
    Result<void> grant(const backend::LinkOwner& owner, std::size_t number);
    Result<void> grant_waiting(const backend::LinkOwner& owner);
    Result<void> check_silence() const;
    void answer(const Head& head);
    Result<void> post_receive(std::size_t buffer, bool counts);

    unsigned char* receive_buffer(std::size_t index) const { return buffers_.get() + index * buffer_bytes; }
    unsigned char* send_buffer(std::size_t index) const {
        return buffers_.get() + (receive_buffers + index) * buffer_bytes;
    }
    // What the loop calls: has `run` make that step.
    using Stage = Result<void> (Rail::*)(backend::LinkOwner&);
    std::function<void()> step(Stage stage) {
        Step made = [stage, this](backend::LinkOwner& owner) { return (this->*stage)(owner); };
        return [go = run_, made = std::move(made)] { go(made); };
    }
    // Calls serve() on the loop, soon; for callbacks that must not keep this rail.
    std::function<void()> wake();

    const driver::TcpSocket socket_;
    driver::EventLoop& loop_;
    Meeting
        met_;  // constant from create() on, as the next: the cards of the one, and as they are at this moment
    std::vector<std::pair<std::shared_ptr<Means>, Card>> cards_;
    // Constant from make() on, gone with end(). The region goes before the buffers, the queue pair before both.
    std::atomic<bool> made_{false};
    std::shared_ptr<Means> means_;
    Card card_;
    std::unique_ptr<unsigned char, void (*)(void*)> buffers_{nullptr, nullptr};
    std::unique_ptr<driver::VerbsRegion> region_;
    std::unique_ptr<driver::VerbsCompletions> completions_;
    std::unique_ptr<driver::VerbsQueuePair> pair_;
    Greeting mine_;
    Run run_;  // constant from watch() on
    std::vector<driver::EventLoop::Id> ids_;
    driver::EventLoop::Id events_ = 0;  // of completions; not with the others, since it may come later

    // Only hear() and tick(), on the loop.
    std::array<unsigned char, std::max(meeting_bytes, greeting_bytes)> heard_{};
    std::size_t heard_bytes_ = 0;
    int ticks_ = 0;

    // Held by whoever takes in what has come, and from end() on for good; a flag, since its holder may come back here.
    std::atomic_flag polling_;
    std::atomic<bool> again_{false};
    bool failed_ = false;
    std::array<OfferIn, most_open> offers_in_;
    std::vector<std::size_t> waits_for_bounce_;
    std::atomic<unsigned> resumed_{0};
    std::atomic<unsigned> looks_{0};
    std::atomic<std::int64_t> posted_{0};  // requests that have not come back

    std::atomic<Bytes> queued_{0};
    mutable std::mutex mutex_;  // guards what follows
    State state_ = State::meeting;
    bool dead_ = false;
    bool probing_ = false;
    unsigned looks_seen_ = 0;
    driver::EventLoop::Id waits_again_ = 0;  // the task that does, while others look
    bool blocked_ = false;                   // something waits for a free buffer
    Greeting agreed_;
    Bytes eager_ = eager_bytes;
    std::uint16_t credits_ = 0;
    std::uint16_t give_back_ = 0;  // buffers that are free again and the other end does not know
    std::vector<std::size_t> free_sends_;
    std::deque<Head> answers_;
    std::deque<Outgoing> small_;
    std::uint64_t small_queued_ = 0, small_sent_ = 0;  // ever
    std::deque<Outgoing> large_;
    unsigned turns_ = 0;
    std::array<OfferOut, most_open> offers_out_;
    std::vector<std::uint16_t> free_offers_;
    std::deque<std::uint16_t> answered_;  // that wait for a buffer, or the next flush
    int writes_ = 0;
    std::deque<Asked> later_;
    std::size_t to_ask_ = 0;  // of them
};

}  // namespace sidestep::backends::verbs
