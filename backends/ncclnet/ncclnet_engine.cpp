#include "backends/ncclnet/ncclnet_engine.hpp"

#include <utility>

#include <fmt/format.h>

#include "base/log.hpp"
#include "base/try.hpp"
#include "driver/memory_limits.hpp"

namespace sidestep::backends::ncclnet {
Result<std::unique_ptr<Engine>> Engine::create(const Options& options) {
    auto means = std::make_shared<Means>();
    SIDESTEP_TRY(means->plugin, start_plugin(options));
    SIDESTEP_TRY(means->pump, Pump::start());
    means->patience = options.patience;
    means->prepared = std::make_shared<PreparedMemory>(
        means->pump, options.most_pinned != 0 ? options.most_pinned : driver::machine_memory() / 2);
    const auto make = [pump = means->pump] { return Bounce::make(pump); };
    means->bounces_out = std::make_shared<Bounces>(make, options.bounces);
    means->bounces_in = std::make_shared<Bounces>(make, options.bounces);
    const auto& [net, device] = means->plugin;
    base::log(base::LogLevel::info, fmt::format("the network plugin {} ({}, version {}) carries bytes by {}",
                                                net->name(), net->library(), net->version(), device.name));
    return std::unique_ptr<Engine>(new Engine(std::move(means)));
}

Engine::Engine(std::shared_ptr<Means> means) : RailEngine("ncclnet", {}), means_(std::move(means)) {}

Engine::~Engine() {
    end_links();
    if (loop_) loop_->end();
    if (!means_->pump->end(means_->patience.close))
        base::log(base::LogLevel::warn, fmt::format("the network plugin {} hangs; its thread is left alone",
                                                    means_->plugin.net->name()));
}

Result<std::shared_ptr<backend::Rail>> Engine::rail(int descriptor, std::size_t,
                                                    const backend::SocketKeys& keys) {
    driver::TcpSocket socket{driver::Fd(descriptor)};
    SIDESTEP_CHECK(refuse(keys));
    SIDESTEP_TRY(driver::EventLoop* const serving, loop());
    SIDESTEP_TRY(auto made, Rail::create(means_, std::move(socket), *serving));
    return std::shared_ptr<backend::Rail>(std::move(made));
}

Result<std::shared_ptr<const void>> Engine::prepare(void* address, Bytes size) {
    return means_->prepared->add(address, size);
}

Result<driver::EventLoop*> Engine::loop() {
    const std::lock_guard lock(mutex_);
    if (!loop_) {
        SIDESTEP_TRY(loop_, driver::EventLoop::create("the ncclnet engine"));
        loop_->every(std::chrono::seconds(1), [this] { look_after_links(); });
    }
    return loop_.get();
}

}  // namespace sidestep::backends::ncclnet
