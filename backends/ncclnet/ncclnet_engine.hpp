// The network plugins of NCCL: networks that only their maker's plugin can use (EFA, Slingshot and others).
#pragma once

#include <memory>
#include <mutex>

#include "backend/device_trial.hpp"
#include "backend/nearness.hpp"
#include "backend/rails.hpp"
#include "backends/ncclnet/loopback.hpp"
#include "backends/ncclnet/plugin.hpp"
#include "backends/ncclnet/rail.hpp"
#include "driver/event_loop.hpp"

namespace sidestep::backends::ncclnet {

// Links over the quickest devices of one plugin, in turns. Of these, memory of a GPU leaves by the nearest. One thread serves all
// sockets, and the plugin is called on another. Any thread.
class Engine final : public backend::RailEngine {
public:
    // Why there is no plugin that can be used, and what to do, where there is none.
    static Result<std::unique_ptr<Engine>> create(const Options& options);
    // Ends all links, and tells their owners. Not on one of its threads.
    ~Engine() override;
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;

    std::string_view name() const override { return "ncclnet"; }
    // At least two, and one for each device.
    std::size_t useful_sockets() const override;
    Result<std::shared_ptr<const void>> prepare(void* address, Bytes size) override;
    // By dma-buf, else by its address: what the plugin says that it takes, if each of its devices does, and brings bytes there
    // and back when it is first tried out with a GPU.
    Result<std::optional<backend::ReachedDevice>> prepare_device(const Buffer& memory,
                                                                 backend::DmaBufs& exporter) override;

    const Plugin& plugin() const { return means_->plugin; }
    const backend::LargeFrames& counts() const { return means_->counts; }

private:
    explicit Engine(std::shared_ptr<Means> means);
    Result<std::shared_ptr<backend::Rail>> rail(int socket, std::size_t number,
                                                const backend::SocketKeys& keys) override;
    Result<driver::EventLoop*> loop();
    Result<std::shared_ptr<const void>> registered(const Buffer& memory, bool by_dma_buf,
                                                   backend::DmaBufs& exporter);
    Result<void> try_out(bool by_dma_buf, const Place& gpu, backend::DmaBufs& exporter);
    std::vector<backend::Nearness> nearness_to(const Place& gpu) const;
    std::string nearest_to(const Place& gpu) const;

    const std::shared_ptr<Means> means_;
    Loopbacks loopbacks_;
    backend::DeviceTrials trials_;
    std::mutex mutex_;  // guards what follows
    std::unique_ptr<driver::EventLoop> loop_;
};

}  // namespace sidestep::backends::ncclnet
