// RDMA: InfiniBand and RoCE, by libibverbs. Sockets only bring the two ends together, and tell that one has gone.
#pragma once

#include <memory>
#include <mutex>

#include "backend/rails.hpp"
#include "backends/verbs/card.hpp"
#include "backends/verbs/rail.hpp"
#include "driver/event_loop.hpp"

namespace sidestep::backends::verbs {

// Links over one port of one card, and the thread that serves them all. Any thread.
class Engine final : public backend::RailEngine {
public:
    // Why there is no card that can be used, and what to do, where there is none.
    static Result<std::unique_ptr<Engine>> create(const Options& options);
    // Ends all links, and tells their owners. Not on its thread.
    ~Engine() override;
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;

    std::string_view name() const override { return "verbs"; }
    std::size_t useful_sockets() const override { return 2; }
    Result<std::shared_ptr<const void>> prepare(void* address, Bytes size) override;
    // The same for `size` bytes from `offset` on of a dma-buf, whose addresses in landings and payloads begin at
    // `iova`. unsupported where the card's driver or the library does not do that.
    Result<std::shared_ptr<const void>> prepare_dmabuf(int fd, std::uint64_t offset, Bytes size,
                                                       std::uint64_t iova);

    const Card& card() const { return means_->card; }
    const backend::LargeFrames& counts() const { return means_->counts; }

private:
    explicit Engine(std::shared_ptr<Means> means);
    Result<std::shared_ptr<backend::Rail>> rail(int socket) override;
    Result<driver::EventLoop*> loop();
    void take_events();

    const std::shared_ptr<Means> means_;
    std::mutex mutex_;  // guards what follows
    std::unique_ptr<driver::EventLoop> loop_;
};

}  // namespace sidestep::backends::verbs
