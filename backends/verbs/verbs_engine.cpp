#include "backends/verbs/verbs_engine.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "backend/nearness.hpp"
#include "backends/verbs/device_trial.hpp"
#include "base/log.hpp"
#include "base/try.hpp"
#include "driver/memory_limits.hpp"
#include "driver/memory_map.hpp"

namespace sidestep::backends::verbs {

Result<std::unique_ptr<Engine>> Engine::create(const Options& options) {
    SIDESTEP_TRY(OpenedCards found, open_cards(options));
    const auto counts = std::make_shared<backend::LargeFrames>();
    Cards cards;
    for (Card& card : found.cards) {
        auto means = std::make_shared<Means>();
        means->card = std::move(card);
        means->counts = counts;
        means->silence = options.silence;
        means->gpus = backend::gpu_distances(options.topology, means->name());
        const auto& context = means->card.context;
        means->prepared = std::make_shared<PreparedMemory>(
            context, options.most_pinned != 0 ? options.most_pinned : driver::machine_memory() / 2);
        const auto make = [context] { return Bounce::make(context); };
        means->bounces_out = std::make_shared<Bounces>(make, options.bounces);
        means->bounces_in = std::make_shared<Bounces>(make, options.bounces);
        cards.push_back(std::move(means));
    }
    return std::unique_ptr<Engine>(
        new Engine(std::move(cards), std::move(found.left_out), counts, options.topology));
}

Engine::Engine(Cards cards, std::vector<backend::LeftOut> left_out,
               std::shared_ptr<backend::LargeFrames> counts, const Topology* topology)
    : RailEngine("verbs", {.scatters = true, .direct_above = Rail::eager_bytes}),
      cards_(std::move(cards)),
      left_out_(std::move(left_out)),
      counts_(std::move(counts)),
      topology_(topology) {}

Engine::~Engine() {
    end_links();
    // Not with the mutex held: the loop may be taking an event of a card.
    if (loop_) loop_->end();
}

Result<std::shared_ptr<backend::Rail>> Engine::rail(int descriptor, std::size_t number,
                                                    const backend::SocketKeys& keys) {
    driver::TcpSocket socket{driver::Fd(descriptor)};
    SIDESTEP_CHECK(refuse(keys));
    SIDESTEP_TRY(driver::EventLoop* const serving, loop());
    SIDESTEP_TRY(auto made, Rail::create(cards_, number, std::move(socket), *serving));
    return std::shared_ptr<backend::Rail>(std::move(made));
}

std::vector<std::string> Engine::card_names() const {
    std::vector<std::string> names;
    for (const auto& card : cards_) names.push_back(card->name());
    return names;
}

bool Engine::works() const {
    return std::any_of(cards_.begin(), cards_.end(), [](const auto& card) { return card->works(); });
}

bool Engine::avoid(const Error& why) {
    for (const auto& card : cards_)
        if (card->name() == why.where) card->avoided = std::chrono::steady_clock::now() + avoided_for;
    return cards_.size() > 1 && works();
}

template <typename PrepareBy>
Result<Engine::Ready> Engine::on_every_card(const Place& place, PrepareBy&& prepare_by) const {
    Ready ready;
    for (const auto& card : cards_) {
        const int distance = topology_ && cards_.size() > 1
                                 ? backend::nearness(*topology_, card->name(), place).distance()
                                 : 0;
        SIDESTEP_TRY(auto one, prepare_by(*card->prepared, distance));
        ready.push_back(std::move(one));
    }
    return ready;
}

Result<std::shared_ptr<const void>> Engine::prepare(void* address, Bytes size) {
    if (size == 0) return std::shared_ptr<const void>();
    const int node = cards_.size() > 1 ? driver::numa_node_of(address) : -1;
    SIDESTEP_TRY(auto ready, on_every_card(node < 0 ? Place::host() : Place::host(node),
                                           [&](PreparedMemory& prepared, int distance) {
                                               return prepared.add(address, size, distance);
                                           }));
    return std::shared_ptr<const void>(std::make_shared<const Ready>(std::move(ready)));
}

Result<Engine::Ready> Engine::ready_by(Road road, const Buffer& memory, backend::DmaBufs& exporter) const {
    if (road == Road::address)
        return on_every_card(memory.place(), [&](PreparedMemory& prepared, int distance) {
            return prepared.add_device(memory.address(), memory.size(), distance);
        });
    SIDESTEP_TRY(const backend::DmaBuf handed, exporter.dma_buf(memory));
    auto ready = on_every_card(memory.place(), [&](PreparedMemory& prepared, int distance) {
        return prepared.add_dma_buf(handed.descriptor, handed.offset, memory.size(),
                                    reinterpret_cast<std::uintptr_t>(memory.address()), distance);
    });
    // One descriptor for all cards: each of its own would take as much of the GPU's window again.
    if (ready) ready->push_back(handed.keeps);
    return ready;
}

Result<void> Engine::try_out(Road road, const Place& gpu, backend::DmaBufs& exporter) const {
    SIDESTEP_TRY(const Allocation scratch, exporter.scratch(gpu, backend::device_trial_bytes));
    SIDESTEP_TRY(const Ready ready, ready_by(road, scratch.buffer(), exporter));
    for (const auto& one : cards_) {
        SIDESTEP_TRY(const Card card, look_again(one->card));
        SIDESTEP_CHECK(try_device(card, *one->prepared, exporter, scratch.buffer()));
    }
    return {};
}

Result<void> Engine::trusted(Road road, const Place& gpu, backend::DmaBufs& exporter) {
    return trials_.once(static_cast<int>(road), gpu, "RDMA cards",
                        [&] { return try_out(road, gpu, exporter); });
}

Result<std::optional<backend::ReachedDevice>> Engine::prepare_device(const Buffer& memory,
                                                                     backend::DmaBufs& exporter) {
    const Place& gpu = memory.place();
    const auto names = card_names();
    const std::string card =
        topology_ ? backend::card_words(*topology_, names[backend::nearest_card(*topology_, names, gpu)],
                                        left_out_, gpu)
                  : names.front();
    std::string no_dma_buf;
    for (const Road road : {Road::dma_buf, Road::address}) {
        auto ready = ready_by(road, memory, exporter);
        if (ready)
            if (const auto trust = trusted(road, gpu, exporter); !trust) ready = trust.error();
        if (!ready && road == Road::dma_buf) {
            no_dma_buf = ready.error().message;
            continue;
        }
        if (!ready)
            return Error{ErrorCode::unsupported,
                         fmt::format("neither by dma-buf ({}) nor by nvidia-peermem ({})", no_dma_buf,
                                     ready.error().message),
                         gpu.to_string(), "sidestep doctor says what is missing"};
        const std::string how =
            road == Road::dma_buf ? "by dma-buf" : fmt::format("by its address (no dma-buf: {})", no_dma_buf);
        return std::optional(backend::ReachedDevice{std::make_shared<const Ready>(std::move(*ready)),
                                                    fmt::format("{} and {}", how, card), "over RDMA"});
    }
    return std::optional<backend::ReachedDevice>();
}

Result<driver::EventLoop*> Engine::loop() {
    std::lock_guard lock(mutex_);
    if (!loop_) {
        SIDESTEP_TRY(auto loop, driver::EventLoop::create("the verbs engine"));
        for (const auto& card : cards_)
            SIDESTEP_CHECK(
                loop->add(card->card.context->events(), true, false,
                          [this, card = card.get()](driver::EventLoop::Ready) { take_events(*card); }));
        loop_ = std::move(loop);
    }
    return loop_.get();
}

// A port that is down for a moment does no harm; links that it leads nowhere for long end, by what they have under way.
void Engine::take_events(const Means& card) {
    ibv_event_type type{};
    bool lost = false;
    while (card.card.context->take_event(type))
        lost = lost || type == IBV_EVENT_PORT_ERR || type == IBV_EVENT_DEVICE_FATAL;
    if (!lost) return;
    base::log(base::LogLevel::warn, "a port of the RDMA card " + card.name() + " is down");
    probe_links();
}

}  // namespace sidestep::backends::verbs
