#include "backends/verbs/rail.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <optional>
#include <thread>
#include <utility>

#include "backends/verbs/pair.hpp"
#include "base/try.hpp"
#include "driver/random.hpp"

namespace sidestep::backends::verbs {
namespace {

// Some drivers wake nobody for a request that failed: it is seen so late at most.
constexpr std::chrono::milliseconds tick_period{200};
constexpr int ticks_to_join = 75;
constexpr unsigned char ready_byte = 'R';
// For what was posted to come back once the queue pair has failed.
constexpr std::chrono::seconds drain_patience{1};

Error hung_up() {
    return Error{ErrorCode::io_error, "the other machine hung up", "verbs", {}};
}

}  // namespace

Result<std::shared_ptr<Rail>> Rail::create(const Cards& cards, std::size_t number, driver::TcpSocket socket,
                                           driver::EventLoop& loop) {
    std::shared_ptr<Rail> rail(new Rail(std::move(socket), loop));
    SIDESTEP_CHECK(rail->introduce(cards, number));
    return rail;
}

// Cards whose links were lost are left out, unless there is no other.
Result<void> Rail::introduce(const Cards& cards, std::size_t number) {
    std::optional<Error> first;
    for (const bool avoid : {true, false}) {
        for (const auto& one : cards) {
            if (avoid && !one->works()) continue;
            auto card = look_again(one->card);
            if (!card && !first) first = card.error();
            if (!card) continue;
            met_.cards.push_back({card->layer, card->gid.gid});
            cards_.emplace_back(one, std::move(*card));
        }
        if (!cards_.empty()) break;
    }
    if (cards_.empty()) return *first;
    met_.lot = static_cast<std::uint32_t>(driver::random_number());
    met_.rail = static_cast<std::uint16_t>(number);
    if (cards_.size() == 1) SIDESTEP_CHECK(make(0));
    const auto bytes = to_bytes(met_);
    return say(bytes.data(), bytes.size());
}

// Where it did not come as far as its link.
Rail::~Rail() {
    if (pair_ != nullptr) end();
}

Result<void> Rail::make(std::size_t card) {
    means_ = cards_[card].first;
    card_ = cards_[card].second;
    constexpr std::size_t page = 4096;
    constexpr std::size_t bytes = ((receive_buffers + send_buffers) * buffer_bytes + page - 1) / page * page;
    buffers_ = {static_cast<unsigned char*>(std::aligned_alloc(page, bytes)), &std::free};
    if (buffers_ == nullptr)
        return Error{
            ErrorCode::out_of_memory, "there is no memory for the buffers of a connection", "verbs", {}};
    SIDESTEP_TRY(auto region, driver::VerbsRegion::host(card_.context, buffers_.get(), bytes,
                                                        static_cast<unsigned>(IBV_ACCESS_LOCAL_WRITE)));
    region_ = std::make_unique<driver::VerbsRegion>(std::move(region));
    for (std::size_t i = send_buffers; i > 0; --i) free_sends_.push_back(i - 1);
    for (std::uint16_t i = most_open; i > 0; --i) free_offers_.push_back(static_cast<std::uint16_t>(i - 1));
    return make_pair();
}

Result<void> Rail::make_pair() {
    ibv_qp_cap wanted{};
    wanted.max_send_wr = send_buffers + most_open + 1;
    wanted.max_recv_wr = receive_buffers;
    wanted.max_send_sge = 1;
    wanted.max_recv_sge = 1;
    wanted.max_inline_data = wanted_inline;
    const auto& context = card_.context;
    SIDESTEP_TRY(completions_, driver::VerbsCompletions::create(
                                   context, static_cast<int>(wanted.max_send_wr + wanted.max_recv_wr)));
    SIDESTEP_TRY(pair_, driver::VerbsQueuePair::create(context, completions_->get(), wanted));
    SIDESTEP_CHECK(make_joinable(*pair_, card_));
    for (std::size_t i = 0; i < receive_buffers; ++i) SIDESTEP_CHECK(post_receive(i, false));
    made_.store(true);
    return {};
}

Result<void> Rail::say(const unsigned char* bytes, std::size_t size) const {
    const driver::TcpSocket::Part part{bytes, size};
    SIDESTEP_TRY(const Bytes sent, socket_.send({&part, 1}));
    if (sent != size) return Error{ErrorCode::io_error, "the other machine takes nothing", "verbs", {}};
    return {};
}

Result<void> Rail::greet() {
    mine_ = greeting_of(*pair_, card_);
    mine_.eager = eager_bytes;
    mine_.receives = receives;
    mine_.offers = most_open;
    mine_.gpus = means_->gpus;
    const auto bytes = to_bytes(mine_);
    return say(bytes.data(), bytes.size());
}

Result<void> Rail::watch(Run run) {
    run_ = std::move(run);
    if (made_.load()) SIDESTEP_CHECK(watch_completions());
    ids_.push_back(loop_.every(tick_period, step(&Rail::tick)));
    SIDESTEP_TRY(const auto bytes, loop_.add(socket_.number(), true, false,
                                             [run = step(&Rail::hear)](driver::EventLoop::Ready) { run(); }));
    ids_.push_back(bytes);
    return {};
}

Result<void> Rail::watch_completions() {
    SIDESTEP_TRY(events_, loop_.add(completions_->number(), true, false,
                                    [run = step(&Rail::serve)](driver::EventLoop::Ready) { run(); }));
    return completions_->arm(true);
}

// How far the cards are from memory that was made ready for this one, and from the other machine's GPU; of other memory none is
// nearer. Rails that have not met are last.
int Rail::distance(const void* payload, unsigned to_gpu) const {
    if (cards_.size() == 1 || payload == nullptr) return 0;
    int there = 0;
    {
        std::lock_guard lock(mutex_);
        if (state_ == State::meeting || state_ == State::greeting) return std::numeric_limits<int>::max();
        if (to_gpu > 0) there = agreed_.gpus[to_gpu - 1];
    }
    const auto part = means_->prepared->find(payload, 1);
    return backend::distance_both_ways(part ? part->distance : 0, there);
}

std::string Rail::over() const {
    return made_.load() ? means_->name() : std::string();
}

// The other end has said which cards it has.
Result<void> Rail::meet() {
    SIDESTEP_TRY(const Meeting theirs, parse_meeting(heard_.data()));
    SIDESTEP_TRY(const JoinedCards joined, choose_cards(met_, theirs));
    if (!made_.load()) {
        SIDESTEP_CHECK(make(joined.mine));
        SIDESTEP_CHECK(watch_completions());
    }
    heard_bytes_ = 0;
    {
        std::lock_guard lock(mutex_);
        state_ = State::greeting;
    }
    return greet();
}

Result<void> Rail::hear(backend::LinkOwner& owner) {
    State state{};
    {
        std::lock_guard lock(mutex_);
        state = state_;
    }
    if (state == State::meeting) {
        SIDESTEP_TRY(const bool all, hear_all(meeting_bytes));
        return all ? meet() : Result<void>();
    }
    if (state == State::greeting) {
        SIDESTEP_TRY(const bool all, hear_all(greeting_bytes));
        if (!all) return {};
        SIDESTEP_TRY(const Greeting theirs, parse_greeting(heard_.data()));
        return join(theirs);
    }
    unsigned char byte = 0;
    SIDESTEP_TRY(const auto came, socket_.receive(&byte, 1));
    if (!came) return {};
    if (*came == 0) {
        // What came before that is taken in.
        SIDESTEP_CHECK(serve(owner));
        return hung_up();
    }
    if (state == State::open || byte != ready_byte)
        return Error{ErrorCode::io_error, "the other machine says what means nothing", "verbs", {}};
    {
        std::lock_guard lock(mutex_);
        state_ = State::open;
        credits_ = agreed_.receives;
    }
    return flush();
}

// Whether all of it is there.
Result<bool> Rail::hear_all(std::size_t size) {
    SIDESTEP_TRY(const auto came, socket_.receive(heard_.data() + heard_bytes_, size - heard_bytes_));
    if (!came) return false;
    if (*came == 0) return hung_up();
    heard_bytes_ += *came;
    return heard_bytes_ == size;
}

Result<void> Rail::join(const Greeting& theirs) {
    SIDESTEP_TRY(const Greeting agreed, agree(mine_, theirs));
    SIDESTEP_CHECK(join_pair(*pair_, card_, mine_, theirs, agreed.mtu));
    keep_to(agreed);
    return say(&ready_byte, 1);
}

// Nothing has been sent before.
void Rail::keep_to(const Greeting& agreed) {
    std::lock_guard lock(mutex_);
    agreed_ = agreed;
    state_ = State::joined;
    std::erase_if(free_offers_, [&](std::uint16_t number) { return number >= agreed.offers; });
    eager_ = agreed.eager;
    std::deque<Outgoing> waiting;
    waiting.swap(small_);
    for (Outgoing& out : waiting) (out.size() > eager_ ? large_ : small_).push_back(std::move(out));
}

Result<void> Rail::tick(backend::LinkOwner& owner) {
    {
        std::lock_guard lock(mutex_);
        if (state_ != State::open && ++ticks_ > ticks_to_join)
            return Error{ErrorCode::timed_out,
                         "the other machine does not join its RDMA card to this one's",
                         "verbs",
                         {}};
    }
    return turn(owner, true);
}

void Rail::probe() {
    std::lock_guard lock(mutex_);
    if (dead_ || probing_ || state_ != State::open) return;
    ibv_send_wr request{};
    request.wr_id = static_cast<std::uint64_t>(Work::probe) << 32;
    request.opcode = IBV_WR_RDMA_WRITE;
    probing_ = post(request).ok();
}

void Rail::end() {
    {
        std::lock_guard lock(mutex_);
        dead_ = true;
    }
    for (const auto id : std::exchange(ids_, {})) loop_.remove(id);
    if (const auto id = std::exchange(events_, 0); id != 0) loop_.remove(id);
    if (waits_again_ != 0) loop_.remove(waits_again_);
    while (polling_.test_and_set()) std::this_thread::yield();
    if (pair_ != nullptr) {
        pair_->fail();
        drain_failed();
    }
    pair_.reset();
    completions_.reset();
    region_.reset();
    // What these hold may come back here when it goes.
    for (OfferIn& offer : offers_in_) offer = {};
    std::deque<Outgoing> small, large;
    std::array<OfferOut, most_open> offers;
    std::lock_guard lock(mutex_);
    small.swap(small_);
    large.swap(large_);
    offers.swap(offers_out_);
}

// A card tells of everything that was posted; whoever does not is left by destroying the queue pair.
void Rail::drain_failed() {
    const auto until = std::chrono::steady_clock::now() + drain_patience;
    std::array<ibv_wc, 16> entries;
    while (posted_.load() > 0 && std::chrono::steady_clock::now() < until) {
        const auto count = completions_->poll(entries.data(), static_cast<int>(entries.size()));
        if (!count) return;
        posted_.fetch_sub(static_cast<std::int64_t>(*count));
        if (*count == 0) std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
}

std::function<void()> Rail::wake() {
    return [weak = weak_from_this()] {
        const auto self = weak.lock();
        if (!self) return;
        std::lock_guard lock(self->mutex_);
        if (!self->dead_) self->loop_.post(self->step(&Rail::serve));
    };
}

}  // namespace sidestep::backends::verbs
