#include "backends/ncclnet/ncclnet_engine.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/log.hpp"
#include "base/try.hpp"
#include "driver/memory_limits.hpp"
#include "driver/random.hpp"

namespace sidestep::backends::ncclnet {

using driver::nccl_net::cuda_memory;
using driver::nccl_net::dma_buf_memory;

namespace {

std::string names_of(const Plugin& plugin) {
    std::vector<std::string_view> names;
    for (const auto& device : plugin.devices) names.push_back(device.name);
    return fmt::format("{}", fmt::join(names, ", "));
}

// Those kinds of memory that every device takes.
int takes(const Plugin& plugin, int kinds) {
    for (const auto& device : plugin.devices) kinds &= device.memory;
    return kinds;
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::create(const Options& options) {
    auto means = std::make_shared<Means>();
    SIDESTEP_TRY(means->plugin, start_plugin(options));
    SIDESTEP_TRY(means->pump, Pump::start());
    means->patience = options.patience;
    means->topology = options.topology;
    means->prepared = std::make_shared<PreparedMemory>(
        means->pump, options.most_pinned != 0 ? options.most_pinned : driver::machine_memory() / 2);
    const auto make = [pump = means->pump] { return Bounce::make(pump); };
    means->bounces_out = std::make_shared<Bounces>(make, options.bounces);
    means->bounces_in = std::make_shared<Bounces>(make, options.bounces);
    const auto& net = means->plugin.net;
    base::log(base::LogLevel::info,
              fmt::format("the network plugin {} ({}, version {}) carries bytes by {}", net->name(),
                          net->library(), net->version(), names_of(means->plugin)));
    return std::unique_ptr<Engine>(new Engine(std::move(means)));
}

Engine::Engine(std::shared_ptr<Means> means)
    // A plugin that takes no memory of GPUs says so when it is asked: prepare_device().
    : RailEngine("ncclnet", {.direct_above = most_small}),
      means_(std::move(means)),
      loopbacks_(means_->plugin, means_->patience, means_->pump) {}

Engine::~Engine() {
    end_links();
    if (loop_) loop_->end();
    loopbacks_.close();
    if (!means_->pump->end(means_->patience.close))
        base::log(base::LogLevel::warn, fmt::format("the network plugin {} hangs; its thread is left alone",
                                                    means_->plugin.net->name()));
}

std::size_t Engine::useful_sockets() const {
    return std::clamp(means_->plugin.devices.size(), std::size_t{2}, backend::most_sockets);
}

Result<std::shared_ptr<backend::Rail>> Engine::rail(int descriptor, std::size_t number,
                                                    const backend::SocketKeys& keys) {
    driver::TcpSocket socket{driver::Fd(descriptor)};
    SIDESTEP_CHECK(refuse(keys));
    SIDESTEP_TRY(driver::EventLoop* const serving, loop());
    SIDESTEP_TRY(auto made,
                 Rail::create(means_, number % means_->plugin.devices.size(), std::move(socket), *serving));
    return std::shared_ptr<backend::Rail>(std::move(made));
}

Result<std::shared_ptr<const void>> Engine::prepare(void* address, Bytes size) {
    return means_->prepared->add(address, size);
}

std::vector<backend::Nearness> Engine::nearness_to(const Place& gpu) const {
    std::vector<backend::Nearness> all;
    for (const auto& device : means_->plugin.devices)
        all.push_back(means_->topology != nullptr
                          ? backend::nearness(*means_->topology, means_->card_of(device), gpu)
                          : backend::Nearness());
    return all;
}

// "fast1 (PIX): one switch from gpu:3".
std::string Engine::nearest_to(const Place& gpu) const {
    const auto all = nearness_to(gpu);
    const auto nearest = std::min_element(
        all.begin(), all.end(), [](const auto& a, const auto& b) { return a.distance() < b.distance(); });
    std::vector<std::string_view> names;
    for (std::size_t i = 0; i < all.size(); ++i)
        if (all[i].path == nearest->path) names.push_back(means_->plugin.devices[i].name);
    return nearest->of(fmt::format("{}", fmt::join(names, ", ")));
}

Result<std::shared_ptr<const void>> Engine::registered(const Buffer& memory, bool by_dma_buf,
                                                       backend::DmaBufs& exporter) {
    backend::DmaBuf exported;
    if (by_dma_buf) {
        SIDESTEP_TRY(exported, exporter.dma_buf(memory));
    }
    std::vector<int> distances;
    for (const auto& near : nearness_to(memory.place())) distances.push_back(near.distance());
    auto range =
        std::make_shared<const Range>(means_->pump, memory.address(), memory.size(), Range::Kind::device,
                                      std::move(exported), std::move(distances));
    SIDESTEP_CHECK(loopbacks_.take(range));
    SIDESTEP_CHECK(trials_.once(by_dma_buf ? 1 : 0, memory.place(), "the network plugin",
                                [&] { return try_out(by_dma_buf, memory.place(), exporter); }));
    return means_->prepared->add(std::move(range));
}

// With other memory of that GPU.
Result<void> Engine::try_out(bool by_dma_buf, const Place& gpu, backend::DmaBufs& exporter) {
    // Goes from the last to the first: nothing of memory stays registered that is freed.
    struct Held {
        Allocation scratch;
        std::unique_ptr<Bounce> host;
        std::shared_ptr<const Range> device;
    };
    const auto held = std::make_shared<Held>();
    SIDESTEP_TRY(held->scratch, exporter.scratch(gpu, backend::device_trial_bytes));
    const Buffer& scratch = held->scratch.buffer();
    backend::DmaBuf exported;
    if (by_dma_buf) {
        SIDESTEP_TRY(exported, exporter.dma_buf(scratch));
    }
    SIDESTEP_TRY(held->host, Bounce::make(means_->pump));
    held->device = std::make_shared<const Range>(means_->pump, scratch.address(), scratch.size(),
                                                 Range::Kind::device, std::move(exported));
    SIDESTEP_CHECK(loopbacks_.take(held->device));
    const Bulk::Piece host{0, held->host->data.get(), backend::device_trial_bytes, held->host->range};
    const Bulk::Piece device{0, scratch.address(), backend::device_trial_bytes, held->device};
    for (std::size_t i = 0; i < means_->plugin.devices.size(); ++i)
        SIDESTEP_CHECK(backend::try_device(
            {.card = means_->plugin.devices[i].name,
             .host = host.address,
             .make_unknown = [](void* to) { driver::fill_unknown(to, backend::device_trial_bytes); },
             .carry_in = [&] { return loopbacks_.carry(i, host, device, held); },
             .carry_back = [&] { return loopbacks_.carry(i, device, host, held); }},
            exporter, scratch));
    return {};
}

Result<std::optional<backend::ReachedDevice>> Engine::prepare_device(const Buffer& memory,
                                                                     backend::DmaBufs& exporter) {
    std::string why[2] = {"the network plugin takes none", "the network plugin takes none"};
    for (const bool by_dma_buf : {true, false}) {
        if (takes(means_->plugin, by_dma_buf ? dma_buf_memory : cuda_memory) == 0) continue;
        auto ready = registered(memory, by_dma_buf, exporter);
        if (ready)
            return std::optional(backend::ReachedDevice{
                std::move(*ready),
                fmt::format(
                    "{} and {}",
                    by_dma_buf ? "by dma-buf" : fmt::format("by its address (no dma-buf: {})", why[0]),
                    nearest_to(memory.place())),
                "by the network plugin"});
        why[by_dma_buf ? 0 : 1] = ready.error().message;
    }
    return Error{ErrorCode::unsupported,
                 fmt::format("neither by dma-buf ({}) nor by its address ({})", why[0], why[1]),
                 memory.place().to_string(), "see what the plugin says with SIDESTEP_LOG=debug"};
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
