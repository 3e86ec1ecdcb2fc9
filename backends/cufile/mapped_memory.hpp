// GPU memory that cuFile has mapped, shared by the copies that use it at the same time.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "backends/cufile/direct_gpus.hpp"
#include "driver/cufile.hpp"

namespace sidestep::backends::cufile {

// Safe to use from several threads. Outlives what it gives out.
class MappedMemory {
public:
    explicit MappedMemory(std::shared_ptr<const driver::Cufile> cufile) : cufile_(std::move(cufile)) {}

    // Mapped until the last holder releases it. Null where cuFile refuses.
    std::shared_ptr<void> map(DirectGpu& gpu, const void* base, Bytes size);

private:
    struct Held {
        std::unique_ptr<driver::CufileBuffer> buffer;
        int holders = 0;
    };
    using Range = std::pair<const void*, Bytes>;
    void drop(DirectGpu& gpu, const Range& range);

    const std::shared_ptr<const driver::Cufile> cufile_;
    std::mutex
        mutex_;  // of what follows; held while cuFile maps, so that nobody uses what is being given back
    std::map<Range, Held> held_;
};

}  // namespace sidestep::backends::cufile
