// The engine that is everywhere: TCP, over several sockets to each machine.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "backend/rails.hpp"
#include "backends/tcp/wire.hpp"
#include "driver/event_loop.hpp"

namespace sidestep::backends::tcp {

// Links over sockets, and the few threads that serve them all. Small frames go out on the caller's thread, where nothing
// waits before them; all else on the thread of the socket. Any thread.
class Engine final : public backend::RailEngine {
public:
    // `loops`: most threads; 0: half the processors, 16 at most. They start with the first sockets.
    explicit Engine(std::size_t loops = 0);
    // Ends all links, and tells their owners. Not on one of their threads.
    ~Engine() override;
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;

    std::string_view name() const override { return "tcp"; }
    std::size_t useful_sockets() const override { return most_loops_; }

private:
    Result<std::shared_ptr<backend::Rail>> rail(int socket, std::size_t number,
                                                const backend::SocketKeys& keys) override;
    Result<driver::EventLoop*> next_loop();

    const std::size_t most_loops_;
    std::mutex mutex_;  // guards what follows
    std::vector<std::unique_ptr<driver::EventLoop>> loops_;
    std::size_t next_ = 0;
};

}  // namespace sidestep::backends::tcp
