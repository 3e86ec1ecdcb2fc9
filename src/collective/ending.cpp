#include "collective/ending.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "collective/service_thread.hpp"

namespace sidestep::collective::ending {
namespace {

constexpr std::chrono::seconds max_wait{2};

// Never freed: it is used while the process ends.
struct State {
    std::atomic<bool> begun{false};
    std::mutex mutex;  // guards what follows
    std::set<std::string, std::less<>> backends;
    std::set<ServiceThread*> services;
    std::set<LastWords> words;
    std::vector<void*> kept;
};

State& state() {
    static State& one = *new State;
    return one;
}

bool all_finished() {
    const std::lock_guard lock(state().mutex);
    return std::all_of(state().services.begin(), state().services.end(),
                       [](const ServiceThread* service) { return service->finished(); });
}

// Registered once for each backend; only the first one to run finds something to do.
void handle() {
    {
        const std::lock_guard lock(state().mutex);
        if (state().begun.exchange(true)) return;
        for (const LastWords words : state().words) words();
        for (const ServiceThread* service : state().services) service->wake();
    }
    const auto until = std::chrono::steady_clock::now() + max_wait;
    while (!all_finished() && std::chrono::steady_clock::now() < until)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const std::lock_guard lock(state().mutex);
    for (ServiceThread* service : state().services)
        if (service->finished()) service->join();
}

}  // namespace

bool begun() noexcept {
    return state().begun.load(std::memory_order_acquire);
}

void prepare_for(std::string_view backend) {
    const std::lock_guard lock(state().mutex);
    if (state().backends.emplace(backend).second) std::atexit(handle);
}

void add(ServiceThread& service) {
    const std::lock_guard lock(state().mutex);
    state().services.insert(&service);
}

void remove(ServiceThread& service) noexcept {
    const std::lock_guard lock(state().mutex);
    state().services.erase(&service);
}

void keep(void* object) {
    const std::lock_guard lock(state().mutex);
    state().kept.push_back(object);
}

void on_begin(LastWords words) {
    const std::lock_guard lock(state().mutex);
    state().words.insert(words);
}

}  // namespace sidestep::collective::ending
