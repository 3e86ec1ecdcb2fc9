#include "checkpoint/layout.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "base/rounding.hpp"
#include "base/try.hpp"
#include "checkpoint/gguf_types.hpp"

namespace sidestep::checkpoint {
namespace {

Bytes aligned(Bytes bytes) {
    return base::round_up(bytes, tensor_alignment);
}

// Elements that are stored together along the last axis; 0 where the type is not known.
std::uint64_t elements_of_block(std::string_view type_name) {
    for (std::uint32_t number = 0; number < 256; ++number)
        if (const GgufType* const type = find_gguf_type(number); type != nullptr && type->name == type_name)
            return type->block;
    return 0;
}

Error cannot_cut(const TensorInfo& tensor, int axis, std::string why, std::string hint = {}) {
    return {ErrorCode::invalid_argument,
            fmt::format("tensor {} cannot be cut along axis {}: {}", tensor.name, axis, why), "layout",
            std::move(hint)};
}

// Every part has to begin with a whole byte, and with a whole block where elements come in blocks.
Result<void> check_parts(const TensorInfo& tensor, const Cut& cut, std::uint64_t block, int asked) {
    for (std::size_t i = 1; i < cut.parts; ++i) {
        const std::uint64_t first = cut.first(i);
        if (first % cut.step != 0)
            return cannot_cut(tensor, asked,
                              fmt::format("part {} of {} would begin at {} of {}, within a byte of {}", i,
                                          cut.parts, first, cut.extent, tensor.type_name));
        if (first % block != 0)
            return cannot_cut(
                tensor, asked,
                fmt::format("part {} of {} would begin at {} of {}, within a block of {} elements of {}", i,
                            cut.parts, first, cut.extent, block, tensor.type_name),
                "cut along another axis, or over a number of places that divides the blocks");
    }
    return {};
}

Result<Cut> cut_along(const TensorInfo& tensor, int asked, std::size_t parts) {
    const int axes = static_cast<int>(tensor.shape.size());
    const int axis = asked < 0 ? axes + asked : asked;
    if (axis < 0 || axis >= axes)
        return cannot_cut(tensor, asked,
                          axes == 0 ? std::string("it is a scalar") : fmt::format("it has {}", axes));
    Cut cut;
    cut.axis = axis;
    cut.extent = tensor.shape[static_cast<std::size_t>(axis)];
    cut.parts = parts;
    if (tensor.bytes == 0) return cut;
    std::uint64_t rows = 1;
    for (int i = 0; i < axis; ++i) rows *= tensor.shape[static_cast<std::size_t>(i)];
    if (rows == 0 || cut.extent == 0)
        return cannot_cut(
            tensor, asked,
            fmt::format("its shape has no elements, and the file has {} bytes of it", tensor.bytes));
    if (tensor.bytes % rows != 0)
        return cannot_cut(tensor, asked,
                          fmt::format("rows of {} would begin within a byte", tensor.type_name));
    cut.row = tensor.bytes / rows;
    const std::uint64_t common = std::gcd(cut.row, cut.extent);
    cut.step = cut.extent / common;
    cut.width = cut.row / common;
    // Blocks of elements lie along the last axis.
    std::uint64_t block = 1;
    if (tensor.dtype == Dtype::other && axis == axes - 1) {
        block = elements_of_block(tensor.type_name);
        if (block == 0)
            return cannot_cut(
                tensor, asked,
                fmt::format("how the elements of {} lie along the last axis is not known", tensor.type_name),
                "cut along another axis");
    }
    SIDESTEP_CHECK(check_parts(tensor, cut, block, asked));
    return cut;
}

Result<void> check_order(const std::vector<TensorInfo>& tensors) {
    const TensorInfo* before = nullptr;
    for (const TensorInfo& after : tensors) {
        if (after.bytes == 0) continue;  // it may lie anywhere, within others too
        const TensorInfo* const last = std::exchange(before, &after);
        if (last == nullptr || last->file < after.file) continue;
        if (last->file == after.file && last->offset + last->bytes <= after.offset) continue;
        return Error{ErrorCode::invalid_argument,
                     fmt::format("tensors {} and {} share bytes of their file", last->name, after.name),
                     fmt::format("byte {}", after.offset),
                     {}};
    }
    return {};
}

// Each tensor to the place that has fewest bytes, the largest tensors first. Equal ones keep their order.
void give_to_places(const std::vector<TensorInfo>& tensors, std::size_t places, LayoutPlan& plan) {
    std::vector<std::size_t> order(tensors.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return tensors[a].bytes > tensors[b].bytes; });
    std::vector<Bytes> held(places, 0);
    for (const std::size_t tensor : order) {
        const auto min = std::min_element(held.begin(), held.end());
        *min += aligned(tensors[tensor].bytes);
        plan.slots[tensor].place = static_cast<std::uint32_t>(min - held.begin());
    }
}

Bytes slot_bytes(const LayoutPlan& plan, const TensorInfo& info, std::size_t tensor, std::size_t places) {
    Bytes max = 0;
    if (plan.cut(tensor) == nullptr) return info.bytes;
    for (std::size_t place = 0; place < places; ++place) max = std::max(max, plan.bytes(info, tensor, place));
    return max;
}

void assign_offsets(const std::vector<TensorInfo>& tensors, LayoutPlan& plan) {
    const std::size_t places = plan.memory.size();
    std::vector<Bytes> ends(places, 0);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        LayoutPlan::Slot& slot = plan.slots[i];
        const Bytes bytes = slot_bytes(plan, tensors[i], i, places);
        if (bytes == 0) continue;  // at offset 0, which is within any memory
        const std::size_t first = slot.place == LayoutPlan::everywhere ? 0 : slot.place;
        slot.offset = aligned(ends[first]);
        const Bytes end = slot.offset + bytes;
        if (slot.place == LayoutPlan::everywhere)
            std::fill(ends.begin(), ends.end(), end);
        else
            ends[first] = end;
    }
    for (std::size_t place = 0; place < places; ++place)
        plan.memory[place] = std::max(aligned(ends[place]), tensor_alignment);
}

}  // namespace

std::size_t Cut::part_at(Bytes within_row) const {
    std::size_t low = 0;
    std::size_t high = parts;
    // The last part that begins at or before the byte: those after it in vain are empty.
    while (high - low > 1) {
        const std::size_t middle = low + (high - low) / 2;
        (begin(middle) <= within_row ? low : high) = middle;
    }
    return low;
}

Bytes LayoutPlan::bytes(const TensorInfo& info, std::size_t tensor, std::size_t place) const {
    const Cut* const cut = this->cut(tensor);
    if (cut == nullptr || info.bytes == 0) return info.bytes;
    return info.bytes / cut->row * (cut->begin(place + 1) - cut->begin(place));
}

Bytes LayoutPlan::bytes_to_arrive(const std::vector<TensorInfo>& tensors) const {
    Bytes sum = 0;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        const bool once = slots[i].place != everywhere || slots[i].cut != whole;
        sum += once ? tensors[i].bytes : tensors[i].bytes * memory.size();
    }
    return sum;
}

Result<LayoutPlan> lay_out(const std::vector<TensorInfo>& tensors, std::size_t places, Layout layout,
                           const Axes& axes) {
    SIDESTEP_CHECK(check_order(tensors));
    LayoutPlan plan;
    plan.memory.resize(places);
    plan.slots.resize(tensors.size());
    if (layout == Layout::by_tensor) give_to_places(tensors, places, plan);
    if (layout == Layout::by_axis) {
        for (std::size_t i = 0; i < tensors.size(); ++i) {
            if (!axes[i]) continue;
            SIDESTEP_TRY(const Cut cut, cut_along(tensors[i], *axes[i], places));
            plan.slots[i].cut = static_cast<std::uint32_t>(plan.cuts.size());
            plan.cuts.push_back(cut);
        }
    }
    assign_offsets(tensors, plan);
    return plan;
}

const char* to_string(Layout layout) {
    switch (layout) {
        case Layout::replicate:
            return "replicate";
        case Layout::by_tensor:
            return "tensor";
        case Layout::by_axis:
            return "axis";
    }
    return "replicate";
}

}  // namespace sidestep::checkpoint
