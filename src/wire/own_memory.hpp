// Memory of GPUs of a client's machine, as its sessions move it.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "transfer/engine.hpp"
#include "wire/region_ways.hpp"

namespace sidestep::wire {

// Any thread. Destroyed after the engine, when nothing of it is copied any more, and before the backends.
class OwnMemory {
public:
    // `freed`: a slot that somebody waited for has been given back.
    OwnMemory(const Topology& topology, const backend::Registry& registry, transfer::Engine& engine,
              const Engines& engines, std::function<void()> freed);
    // Keeps what hangs.
    ~OwnMemory();
    OwnMemory(const OwnMemory&) = delete;
    OwnMemory& operator=(const OwnMemory&) = delete;

    // Whether the engine of that name moves memory of that GPU as it is, tried with memory that is nobody's. May block.
    backend::Support reaches(const Place& gpu, std::string_view engine);

    // Memory of a GPU made ready to be read (`out`) or written (`in`); `way` says how. May block.
    Result<std::shared_ptr<Region>> region(const Buffer& buffer, const backend::AttachOptions& options,
                                           std::string& way);

private:
    // What did not work is tried again so long after.
    static constexpr std::chrono::seconds tried_again{10};
    struct Tried {
        backend::Support answer;
        std::chrono::steady_clock::time_point at;
    };
    backend::Support try_out(const Place& gpu, std::string_view engine) const;
    Result<std::shared_ptr<Slots>> slots(const route::End& slot, bool in);

    const Topology& topology_;
    const backend::Registry& registry_;
    transfer::Engine& engine_;
    const Engines& engines_;
    const std::function<void()> freed_;
    transfer::StagingPool pool_{registry_};  // of its own, since slots live longer than the engine
    std::mutex mutex_;                       // guards what follows
    std::shared_ptr<Pieces> pieces_;         // null: not yet
    std::map<std::pair<std::string, Place>, Tried> tried_;
    // For all nodes: so memory is bounded.
    std::map<std::pair<Place, bool>, std::shared_ptr<Slots>> slots_;
};

}  // namespace sidestep::wire
