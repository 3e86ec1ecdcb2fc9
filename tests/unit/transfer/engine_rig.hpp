// An engine over one scripted backend.
#pragma once

#include <cstring>
#include <memory>

#include "fake_backend.hpp"
#include "tests/contents.hpp"
#include "transfer/engine.hpp"

namespace sidestep::test {

// An engine with one fake backend, and memory at either end.
struct EngineRig {
    explicit EngineRig(FakeBackend::Script script, Bytes bytes = 1_MiB) : topology(machine()), size(bytes) {
        auto owned = std::make_unique<FakeBackend>(std::move(script));
        fake = owned.get();
        registry.add(std::move(owned), topology);
        source = *fake->allocate(Place::host(), bytes, MemoryKind::pageable);
        target = *fake->allocate(Place::gpu(0), bytes, MemoryKind::device);
        test::fill(source.address(), bytes);
        std::memset(target.address(), 0xEE, bytes);
        engine = std::make_unique<transfer::Engine>(topology, registry);
    }
    Result<Receipt> copy(const CopyOptions& options = {}) {
        auto job = engine->submit(source.buffer(), target.buffer(), options, nullptr);
        engine->wait(job, std::chrono::nanoseconds(0));
        return job->result();
    }
    bool equal() const { return std::memcmp(source.address(), target.address(), size) == 0; }

    Topology topology;
    Bytes size;
    backend::Registry registry;
    FakeBackend* fake = nullptr;
    Allocation source, target;
    std::unique_ptr<transfer::Engine> engine;
};

inline CopyOptions small_chunks() {
    CopyOptions options;
    options.chunk = 64_KiB;
    return options;
}

inline Error broken(ErrorCode code = ErrorCode::io_error) {
    return {code, "scripted failure", "fake", {}};
}

}  // namespace sidestep::test
