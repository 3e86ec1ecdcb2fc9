#include "backends/ncclnet/rail.hpp"

#include <thread>
#include <utility>

#include <fmt/format.h>

#include "backends/ncclnet/outcome.hpp"
#include "base/kept.hpp"
#include "base/log.hpp"
#include "base/try.hpp"

namespace sidestep::backends::ncclnet {
namespace {

using Clock = std::chrono::steady_clock;

// Seconds without a sign of life, as over TCP.
constexpr int most_silent = 5;
// For what is in flight when a link ends; a message of a megabyte takes far less.
constexpr auto to_drain = std::chrono::milliseconds(100);

}  // namespace

Rail::Rail(std::shared_ptr<Means> means, std::size_t device, driver::TcpSocket socket,
           driver::EventLoop& loop)
    : means_(std::move(means)),
      number_(device),
      device_(means_->plugin.devices[device]),
      socket_(std::move(socket)),
      loop_(loop),
      made_(Clock::now()) {
    socket_.keep_alive(std::chrono::seconds(most_silent));
}

Result<std::shared_ptr<Rail>> Rail::create(std::shared_ptr<Means> means, std::size_t device,
                                           driver::TcpSocket socket, driver::EventLoop& loop) {
    std::shared_ptr<Rail> rail(new Rail(std::move(means), device, std::move(socket), loop));
    SIDESTEP_CHECK(rail->make());
    return rail;
}

// Where it did not come as far as its link.
Rail::~Rail() {
    end();
}

Result<void> Rail::make() {
    bulk_ = std::make_shared<Bulk>(means_->plugin.net, device_.number, means_->patience,
                                   std::weak_ptr<Bulk::Owner>(weak_from_this()));
    const auto handle = std::make_shared<Result<driver::NcclNetHandle>>(driver::NcclNetHandle{});
    const bool made = means_->pump->call(
        [handle, bulk = bulk_, pump = means_->pump.get()] {
            pump->add(bulk);
            *handle = bulk->listen();
        },
        means_->patience.close);
    const auto& net = *means_->plugin.net;
    if (!made)
        return Error{ErrorCode::timed_out,
                     fmt::format("the network plugin {} does not come back", net.name()),
                     net.library(),
                     {}};
    mine_.plugin = net.name();
    SIDESTEP_TRY(mine_.handle, *handle);
    mine_.gpus = backend::gpu_distances(means_->topology, means_->card_of(device_));
    const auto bytes = to_bytes(mine_);
    const driver::TcpSocket::Part part{bytes.data(), bytes.size()};
    SIDESTEP_TRY(const Bytes sent, socket_.send({&part, 1}));
    if (sent != bytes.size())
        return Error{ErrorCode::io_error, "the other machine takes nothing", "ncclnet", {}};
    return {};
}

int Rail::distance(const void* payload, unsigned to_gpu) const {
    if (means_->plugin.devices.size() == 1 || payload == nullptr) return 0;
    const auto range = means_->prepared->find(payload, 1);
    const int here = range && !range->distances.empty() ? range->distances[number_] : 0;
    int there = 0;
    if (to_gpu > 0) there = joined_.load() ? gpus_[to_gpu - 1] : backend::longest_distance;
    return backend::distance_both_ways(here, there);
}

// A step may be made before the loop has said what it is called: whoever needs the number waits for the mutex.
Result<void> Rail::watch(Run run) {
    const std::lock_guard lock(mutex_);
    run_ = std::move(run);
    SIDESTEP_TRY(id_, loop_.add(socket_.number(), true, false, [go = run_, this](driver::EventLoop::Ready) {
        go([this](backend::LinkOwner& owner) { return serve(owner); });
    }));
    return {};
}

bool Rail::lives() {
    const auto& net = *means_->plugin.net;
    std::string what;
    if (means_->pump->away() > means_->patience.silence)
        what = fmt::format("the network plugin {} does not come back from a call", net.name());
    else if (!joined_.load() && Clock::now() - made_ > means_->patience.join)
        what = "the other machine does not say by which network plugin it is reached";
    if (!what.empty()) {
        failed(Error{ErrorCode::timed_out, what, net.library(), {}});
        return true;
    }
    const auto unheard = socket_.unheard();
    silent_ = unheard && *unheard >= std::chrono::seconds(1) ? silent_ + 1 : 0;
    return silent_ < most_silent;
}

void Rail::waits_for(std::uint16_t number) {
    {
        const std::lock_guard lock(mutex_);
        if (dead_) return;
        say({.kind = Message::Kind::here, .offer = number});
    }
    if (auto done = flush(); !done) failed(done.error());
}

void Rail::came(std::uint16_t number) {
    run([this, number](backend::LinkOwner& owner) { return take_bytes(owner, number); });
}

void Rail::gone(std::uint16_t number) {
    std::function<void()> tell;
    {
        const std::lock_guard lock(mutex_);
        if (dead_) return;
        tell = close_offer(number);
    }
    tell();
    if (auto done = flush(); !done) failed(done.error());
}

void Rail::failed(Error why) {
    run([&](backend::LinkOwner&) { return Result<void>(why); });
}

std::function<void()> Rail::wake() {
    return [weak = weak_from_this()] {
        const auto self = weak.lock();
        if (!self) return;
        const std::lock_guard lock(self->mutex_);
        if (self->dead_) return;
        self->loop_.post([go = self->run_, rail = self.get()] {
            go([rail](backend::LinkOwner& owner) { return rail->serve(owner); });
        });
    };
}

// Whether the plugin touches nothing any more.
bool Rail::close_bulk() {
    const auto outcome = std::make_shared<Outcome>();
    const auto close = [outcome, bulk = bulk_, pump = means_->pump.get()](std::chrono::milliseconds drain) {
        bulk->close(drain, [outcome, pump, it = bulk.get()](Result<void> result) {
            pump->remove(it);
            outcome->tell(std::move(result));
        });
    };
    if (means_->pump->here())
        close(std::chrono::milliseconds(0));
    else
        means_->pump->post([close] { close(to_drain); });
    const auto told = outcome->wait(means_->pump->patience_now(means_->patience.close));
    if (told && *told) return true;
    if (!told) means_->pump->hangs();
    base::log(base::LogLevel::warn,
              "memory of a link is kept for good: " +
                  (told ? told->error().to_string() : "the network plugin does not end what it began"));
    return false;
}

void Rail::end() {
    {
        const std::lock_guard lock(mutex_);
        dead_ = true;
        if (std::exchange(ended_, true) || bulk_ == nullptr) return;
    }
    if (id_ != 0) loop_.remove(id_);
    while (receiving_.test_and_set()) std::this_thread::yield();
    struct Given {
        std::map<std::uint16_t, OfferOut> out;
        std::map<std::uint16_t, OfferIn> in;
        std::shared_ptr<Bulk> bulk;
    };
    const bool closed = close_bulk();
    const auto given = std::make_shared<Given>();
    // What these hold may come back here when it goes.
    std::deque<Outgoing> queue;
    std::deque<Large> large;
    std::deque<Asked> later;
    {
        const std::lock_guard lock(mutex_);
        queue.swap(queue_);
        large.swap(large_);
        later.swap(later_);
        given->out.swap(offers_out_);
        given->in.swap(offers_in_);
        given->bulk = bulk_;
    }
    if (!closed) base::keep(given);
}

}  // namespace sidestep::backends::ncclnet
