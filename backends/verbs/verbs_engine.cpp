#include "backends/verbs/verbs_engine.hpp"

#include <algorithm>
#include <utility>

#include "base/log.hpp"
#include "base/try.hpp"
#include "driver/memory_limits.hpp"

namespace sidestep::backends::verbs {
Result<std::unique_ptr<Engine>> Engine::create(const Options& options) {
    auto means = std::make_shared<Means>();
    SIDESTEP_TRY(means->card, open_card(options));
    const auto& context = means->card.context;
    means->prepared = std::make_shared<PreparedMemory>(
        context, options.most_pinned != 0 ? options.most_pinned : driver::machine_memory() / 2);
    const auto make = [context] { return Bounce::make(context); };
    means->bounces_out = std::make_shared<Bounces>(make, options.bounces);
    means->bounces_in = std::make_shared<Bounces>(make, options.bounces);
    return std::unique_ptr<Engine>(new Engine(std::move(means)));
}

Engine::Engine(std::shared_ptr<Means> means) : RailEngine("verbs"), means_(std::move(means)) {}

Engine::~Engine() {
    end_links();
    // Not with the mutex held: the loop may be taking an event of the card.
    if (loop_) loop_->end();
}

Result<std::shared_ptr<backend::Rail>> Engine::rail(int descriptor) {
    driver::TcpSocket socket{driver::Fd(descriptor)};
    SIDESTEP_TRY(driver::EventLoop* const serving, loop());
    SIDESTEP_TRY(auto made, Rail::create(means_, std::move(socket), *serving));
    return std::shared_ptr<backend::Rail>(std::move(made));
}

Result<std::shared_ptr<const void>> Engine::prepare(void* address, Bytes size) {
    return means_->prepared->add(address, size);
}

Result<std::shared_ptr<const void>> Engine::prepare_dmabuf(int fd, std::uint64_t offset, Bytes size,
                                                           std::uint64_t iova) {
    return means_->prepared->add_dma_buf(fd, offset, size, iova);
}

Result<driver::EventLoop*> Engine::loop() {
    std::lock_guard lock(mutex_);
    if (!loop_) {
        SIDESTEP_TRY(auto loop, driver::EventLoop::create("the verbs engine"));
        SIDESTEP_CHECK(loop->add(means_->card.context->events(), true, false,
                                 [this](driver::EventLoop::Ready) { take_events(); }));
        loop_ = std::move(loop);
    }
    return loop_.get();
}

// A port that is down for a moment does no harm; links that it leads nowhere for long end, by what they have under way.
void Engine::take_events() {
    ibv_event_type type{};
    bool lost = false;
    while (means_->card.context->take_event(type))
        lost = lost || type == IBV_EVENT_PORT_ERR || type == IBV_EVENT_DEVICE_FATAL;
    if (!lost) return;
    base::log(base::LogLevel::warn, "a port of the RDMA card " + means_->card.context->name() + " is down");
    probe_links();
}

}  // namespace sidestep::backends::verbs
