// RDMA: InfiniBand and RoCE, by libibverbs. Sockets only bring the two ends together, and tell that one has gone.
#pragma once

#include <memory>
#include <mutex>
#include <utility>

#include "backend/device_trial.hpp"
#include "backend/rails.hpp"
#include "backends/verbs/card.hpp"
#include "backends/verbs/rail.hpp"
#include "driver/event_loop.hpp"

namespace sidestep::backends::verbs {

// Links over the cards of this machine, one port of each, and the thread that serves them all. Any thread.
class Engine final : public backend::RailEngine {
public:
    // Why there is no card that can be used, and what to do, where there is none.
    static Result<std::unique_ptr<Engine>> create(const Options& options);
    // Ends all links, and tells their owners. Not on its thread.
    ~Engine() override;
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;

    std::string_view name() const override { return "verbs"; }
    std::size_t useful_sockets() const override { return 2 * cards_.size(); }
    Result<std::shared_ptr<const void>> prepare(void* address, Bytes size) override;
    // By every card, since any may carry any part of it: by a dma-buf, else by nvidia-peermem. The first time of each way and
    // GPU every card is tried out with other memory of that GPU: see backend/device_trial.hpp.
    Result<std::optional<backend::ReachedDevice>> prepare_device(const Buffer& memory,
                                                                 backend::DmaBufs& exporter) override;
    bool works() const override;
    bool avoid(const Error& why) override;
    bool has_recovered() const override { return works(); }

    std::vector<std::string> card_names() const;
    const backend::LargeFrames& counts() const { return *counts_; }

private:
    // A card that lost a link is left out so long, where there are others.
    static constexpr std::chrono::seconds avoided_for{10};
    using Ready = std::vector<std::shared_ptr<const void>>;

    // How cards come to memory of a GPU.
    enum class Road { dma_buf, address };

    Engine(Cards cards, std::vector<backend::LeftOut> left_out, std::shared_ptr<backend::LargeFrames> counts,
           const Topology* topology);
    Result<std::shared_ptr<backend::Rail>> rail(int socket, std::size_t number,
                                                const backend::SocketKeys& keys) override;
    Result<driver::EventLoop*> loop();
    void take_events(const Means& card);
    // What `prepare_by` makes ready on each card, given the card and how far it is from that place.
    template <typename PrepareBy>
    Result<Ready> on_every_card(const Place& place, PrepareBy&& prepare_by) const;

    Result<Ready> ready_by(Road road, const Buffer& memory, backend::DmaBufs& exporter) const;
    Result<void> trusted(Road road, const Place& gpu, backend::DmaBufs& exporter);
    Result<void> try_out(Road road, const Place& gpu, backend::DmaBufs& exporter) const;

    const Cards cards_;
    const std::vector<backend::LeftOut> left_out_;
    const std::shared_ptr<backend::LargeFrames> counts_;
    const Topology* const topology_;  // null: not known
    std::mutex mutex_;                // guards what follows
    std::unique_ptr<driver::EventLoop> loop_;
    backend::DeviceTrials trials_;
};

}  // namespace sidestep::backends::verbs
