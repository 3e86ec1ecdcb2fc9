#include "collective/ending.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "collective/service_thread.hpp"

namespace sidestep::collective::ending {
namespace {

constexpr std::chrono::seconds max_wait{2};

struct Kept {
    void* object;
    Kept* next;
};

// Never freed: it is used while the process ends.
struct State {
    std::atomic<bool> begun{false};
    // A child that a program forked inherits all of this, and none of the threads: only what this process
    // registered itself counts.
    std::atomic<int> process{0};
    std::atomic<Kept*> kept{nullptr};
    std::mutex mutex;  // guards what follows; a child may find it locked, by a thread that it does not have
    std::set<std::string, std::less<>> backends;
    std::set<ServiceThread*> services;
    std::set<LastWords> words;
};

State& state() {
    static State& one = *new State;
    return one;
}

// Under the lock.
void register_for_this_process() {
    if (state().process.exchange(::getpid()) != ::getpid()) state().services.clear();
}

bool all_finished() {
    const std::lock_guard lock(state().mutex);
    return std::all_of(state().services.begin(), state().services.end(),
                       [](const ServiceThread* service) { return service->finished(); });
}

// Registered once for each backend; only the first one to run finds something to do.
void handle() {
    if (state().process.load() != ::getpid()) return;
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

Maker::Maker() : process_(::getpid()) {}

bool Maker::forked() const noexcept {
    return process_ != ::getpid();
}

bool begun() noexcept {
    return state().begun.load(std::memory_order_acquire);
}

void prepare_for(std::string_view backend) {
    const std::lock_guard lock(state().mutex);
    register_for_this_process();
    if (state().backends.emplace(backend).second) std::atexit(handle);
}

void add(ServiceThread& service) {
    const std::lock_guard lock(state().mutex);
    register_for_this_process();
    state().services.insert(&service);
}

void remove(ServiceThread& service) noexcept {
    const std::lock_guard lock(state().mutex);
    state().services.erase(&service);
}

void keep(void* object) {
    Kept* const one = new Kept{object, state().kept.load()};
    while (!state().kept.compare_exchange_weak(one->next, one)) {
    }
}

void on_begin(LastWords words) {
    const std::lock_guard lock(state().mutex);
    state().words.insert(words);
}

}  // namespace sidestep::collective::ending
