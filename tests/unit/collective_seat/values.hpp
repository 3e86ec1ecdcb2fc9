// Numbers of every element type, and what a reduction of them should come to: worked out in double precision,
// apart from the code under test.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "protocol/collective_task.hpp"

namespace sidestep::collective_seat {

using Values = std::vector<char>;

// Numbers by chance, the same for the same seed: SplitMix64 (Steele, Lea, Flood, OOPSLA 2014). Not an engine of the standard library: of a
// template the linker may take another file's code, which is not optimised. Under the thread sanitizer that took half of some tests.
class Random {
public:
    explicit Random(std::uint64_t seed) : state_(seed) {}
    std::uint64_t operator()();

private:
    std::uint64_t state_;
};

bool is_float(protocol::Element element);
std::string name_of(protocol::Element element);
std::string name_of(protocol::Combine combine);
inline protocol::Element element_of(unsigned number) {
    return static_cast<protocol::Element>(number);
}

// A code of a floating type as a number; its NaNs and infinities too.
double decode(protocol::Element element, const char* code);
// The nearest number of the type, ties to even, the largest finite one for what is beyond; `value` is finite.
void encode(protocol::Element element, double value, char* code);

// `count` elements that `ranks` of them can be combined of without overflow (floats), or any bits (integers).
Values some_values(protocol::Element element, protocol::Combine combine, std::uint64_t count, unsigned ranks,
                   Random& random);

// One element, as CollectiveTask::scale holds it.
std::uint64_t scale_code(protocol::Element element, double value);

// Empty where `output` is what the inputs, in the order of ranks, come to: exactly for integers, min and max,
// with one rounding more than the errors of the accumulator else. Otherwise which element is wrong, and how.
std::string wrong_element(protocol::Element element, protocol::Combine combine,
                          const std::vector<Values>& inputs, const std::vector<double>& scales,
                          const Values& output);

}  // namespace sidestep::collective_seat
