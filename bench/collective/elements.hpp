// What ranks put into a collective, and what has to come out, computed on the host.
//
// Elements repeat with a prime period, so no block looks like the block of another rank, or like one of
// another place. What is combined are small whole numbers, whose sums and products every type holds exactly
// (up to 8 ranks in 8-bit floats): the order in which a library combines them does not show.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "bench/collective/plan.hpp"

namespace sidestep::bench::collective {

class Elements {
public:
    // For a call's type, and its reduction where it combines.
    Elements(const Call& call, int ranks);

    static constexpr std::uint64_t period = 65'521;

    std::size_t element_bytes() const { return element_; }
    // One period of what a rank sends; element i of a buffer is element i % period of it.
    const std::vector<std::byte>& input(int rank) const { return inputs_[static_cast<std::size_t>(rank)]; }
    // The factor of ReduceOp::scaled_sum.
    static constexpr double scale = 2;

    // Element `index` of what rank `rank` has to hold after the call, out of place.
    const std::byte* expected(const Call& call, int rank, int root, std::uint64_t index) const;
    // Whether two elements are the same: bit for bit, but for avg of floats, which may be 2 units in the last
    // place off.
    bool same(const std::byte* a, const std::byte* b) const;

private:
    const std::byte* at(const std::vector<std::byte>& table, std::uint64_t index) const {
        return table.data() + index % period * element_;
    }

    Dtype type_;
    int ranks_;
    bool tolerant_ = false;
    std::size_t element_ = 1;
    std::vector<std::vector<std::byte>> inputs_;
    std::vector<std::byte> combined_;
};

// Elements of the buffers of a rank for a call.
std::uint64_t sent_elements(const Call& call, int rank, int ranks);
std::uint64_t received_elements(const Call& call, int rank, int ranks, int root);
// In place, where input and output begin in the one buffer, in elements.
std::uint64_t input_offset(const Call& call, int rank);
std::uint64_t output_offset(const Call& call, int rank);

// The value in a type's bytes, rounded to the nearest, ties to even; integers wrap.
void encode(Dtype type, double value, std::byte* out);
double decode(Dtype type, const std::byte* in);

}  // namespace sidestep::bench::collective
