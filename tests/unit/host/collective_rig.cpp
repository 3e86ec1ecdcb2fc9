// Emulated GPUs for the suite of tests/unit/collective_seat.
#include <atomic>
#include <cstring>

#include "backends/host/collective/emulated_seat.hpp"
#include "backends/host/host_backend.hpp"
#include "tests/unit/collective_seat/rig.hpp"

namespace sidestep::collective_seat {
namespace {

class EmulatedRig final : public Rig {
public:
    explicit EmulatedRig(const Topology& machine)
        : machine_(machine), backend_(backends::host::create({.threads = 1})) {
        backend_->probe(machine_);
    }
    backend::Backend& backend() override { return *backend_; }
    void write(void* gpu, const void* host, std::size_t bytes) override {
        if (bytes != 0) std::memcpy(gpu, host, bytes);
    }
    void read(void* host, const void* gpu, std::size_t bytes) override {
        if (bytes != 0) std::memcpy(host, gpu, bytes);
    }
    // In place: a sanitizer looks at each pass over the bytes.
    void fill(void* gpu, char byte, std::size_t bytes) override {
        if (bytes != 0) std::memset(gpu, byte, bytes);
    }
    bool holds(const void* gpu, const void* host, std::size_t bytes) override {
        return bytes == 0 || std::memcmp(gpu, host, bytes) == 0;
    }
    void poke(void* gpu, std::uint64_t value) override {
        std::atomic_ref(*static_cast<std::uint64_t*>(gpu)).store(value);
    }
    bool start_counters_at(backend::Seat& seat, std::uint64_t count) override {
        backends::host::start_counters_at(seat, count);
        return true;
    }

private:
    const Topology machine_;
    std::unique_ptr<backend::Backend> backend_;
};

}  // namespace

std::unique_ptr<Rig> make_rig(unsigned gpus) {
    const auto machine = Topology::model(gpus <= 8 ? "dgx-h100" : "dgx-2");
    if (!machine || machine->gpu_count() < static_cast<int>(gpus)) return nullptr;
    return std::make_unique<EmulatedRig>(*machine);
}

}  // namespace sidestep::collective_seat
