// Tensors in memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <sidestep/api.h>
#include <sidestep/allocation.hpp>
#include <sidestep/buffer.hpp>
#include <sidestep/receipt.hpp>
#include <sidestep/tensor_info.hpp>

namespace sidestep {

// A tensor, or the part of one, at one place.
struct LoadedTensor {
    std::string_view name;  // of Loaded
    Dtype dtype = Dtype::u8;
    std::vector<std::uint64_t> shape;  // of the part that is here
    int axis = -1;                     // along which the tensor was cut; -1: it is whole
    std::uint64_t first = 0;           // of the part, along `axis`
    Buffer buffer;                     // 256-byte aligned, C order, without gaps
};

// Owns one allocation a place. A value; copies share the memory, which is freed with the last of them.
class SIDESTEP_API Loaded {
public:
    const std::vector<Place>& places() const;
    // The tensors at one place, in the order of the checkpoint. Empty for a place that is not among places().
    const std::vector<LoadedTensor>& tensors(const Place& place) const;
    // Null where that place has no such tensor.
    const LoadedTensor* find(std::string_view name, const Place& place) const;
    // The memory of that place; null where there is none.
    const Allocation* allocation(const Place& place) const;

    // Bytes that arrived over all places, the route, bytes by the way they came from storage, and the stages.
    const Receipt& receipt() const;
    // Bytes read from files.
    Bytes file_bytes() const;
    // The name of the stage that the others waited for longest, verification left out; empty where none held
    // anything up.
    std::string limit() const;
    // One sentence: what would make this load faster.
    std::string faster() const;
    // The closing table: bytes by path, rate of each stage, the stage that limits, what would make it faster.
    std::string report() const;

private:
    friend struct ContextAccess;
    struct Content;
    explicit Loaded(std::shared_ptr<const Content> content) : content_(std::move(content)) {}
    std::shared_ptr<const Content> content_;
};

}  // namespace sidestep
