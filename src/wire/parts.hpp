// What a request is about: memory of this machine, and what it is to the other one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include <sidestep/units.hpp>
#include "wire/ranges.hpp"

namespace sidestep::wire {

struct Part {
    std::uint64_t region = 0;  // there, from `offset` on
    Bytes offset = 0;
    Bytes size = 0;
    unsigned char* memory = nullptr;  // here; null: the bytes never are
    Bytes at = 0;                     // of the request; Parts says
    std::uint64_t target = 0;         // of a pass: a region of a third machine, as the sender calls it
    Bytes target_offset = 0;
    // As a frame tells it: of the region, of a pull's memory here, or of a pass's target.
    std::uint8_t to_gpu = 0;
};

// The bytes of a request, one part after the other. Constant.
class Parts {
public:
    explicit Parts(std::vector<Part> parts) : parts_(std::move(parts)) {
        for (Part& part : parts_) {
            part.at = size_;
            size_ += part.size;
        }
    }

    Bytes size() const { return size_; }
    std::size_t count() const { return parts_.size(); }
    const Part& first() const { return parts_.front(); }
    // Those bytes, where they lie in one part; null otherwise.
    unsigned char* memory(Bytes at, Bytes size) const {
        const auto after = std::upper_bound(parts_.begin(), parts_.end(), at,
                                            [](Bytes where, const Part& part) { return where < part.at; });
        if (after == parts_.begin()) return nullptr;
        const Part& part = *(after - 1);
        const Bytes within = at - part.at;
        return within <= part.size && size <= part.size - within ? part.memory + within : nullptr;
    }
    // Calls `each` for what the range covers of each part, cut to `most` bytes.
    template <typename Each>
    void cut(Range range, Bytes most, Each&& each) const {
        auto next = std::upper_bound(parts_.begin(), parts_.end(), range.begin,
                                     [](Bytes at, const Part& part) { return at < part.at; });
        if (next != parts_.begin()) --next;
        for (Bytes at = range.begin; next != parts_.end() && at < range.end; ++next)
            for (Bytes within = at - next->at; within < next->size && at < range.end;) {
                const Bytes size = std::min({most, next->size - within, range.end - at});
                each(Part{next->region, next->offset + within, size,
                          next->memory != nullptr ? next->memory + within : nullptr, at, next->target,
                          next->target_offset + within, next->to_gpu});
                within += size;
                at += size;
            }
    }

private:
    std::vector<Part> parts_;
    Bytes size_ = 0;
};

}  // namespace sidestep::wire
