#include "backends/tcp/tcp_engine.hpp"

#include <algorithm>

#include "base/log.hpp"
#include "base/try.hpp"
#include "driver/cpus.hpp"

namespace sidestep::backends::tcp {
namespace {

// Half the processors: eight connections gave as much as twelve on 16 of them, and sixteen 1.4 times as much as eight on 32
// (docs/lab-book.md, "Between machines, over TCP"). More were not tried.
constexpr std::size_t most = 16;

std::size_t chosen_loops() {
    return std::clamp<std::size_t>(static_cast<std::size_t>(driver::usable_cpu_count()) / 2, 1, most);
}

// 4 KiB from host to host took 20 to 22 us so, and 27 to 30 where the thread slept at once (docs/lab-book.md). With few processors
// it would keep others from theirs.
std::chrono::microseconds awake() {
    return std::chrono::microseconds(driver::usable_cpu_count() < 8 ? 0 : 100);
}

}  // namespace

Engine::Engine(std::size_t loops)
    : RailEngine("tcp", {.scatters = true, .finishes = true}),
      most_loops_(loops != 0 ? loops : chosen_loops()) {}

Engine::~Engine() {
    end_links();
}

Result<std::shared_ptr<backend::Rail>> Engine::rail(int descriptor, std::size_t,
                                                    const backend::SocketKeys& keys) {
    driver::TcpSocket plain{driver::Fd(descriptor)};
    SIDESTEP_TRY(driver::TlsSocket socket,
                 keys.empty() ? driver::TlsSocket(std::move(plain))
                              : driver::TlsSocket::encrypted(std::move(plain), keys.out, keys.in));
    SIDESTEP_TRY(driver::EventLoop* const loop, next_loop());
    return std::shared_ptr<backend::Rail>(std::make_shared<Wire>(std::move(socket), *loop));
}

// Threads start as long as there are fewer than sockets; then sockets share them.
Result<driver::EventLoop*> Engine::next_loop() {
    std::lock_guard lock(mutex_);
    if (loops_.size() < most_loops_) {
        auto loop = driver::EventLoop::create("the tcp engine", awake());
        if (!loop && loops_.empty()) return loop.error();
        if (loop) {
            if (loops_.empty()) (*loop)->every(std::chrono::seconds(1), [this] { look_after_links(); });
            loops_.push_back(std::move(*loop));
            return loops_.back().get();
        }
        base::log(base::LogLevel::warn,
                  "sockets to a node share threads, and are slower for it: " + loop.error().to_string());
    }
    return loops_[next_++ % loops_.size()].get();
}

}  // namespace sidestep::backends::tcp
