// Numbers in bytes, the lowest byte first.
#pragma once

#include <cstddef>

namespace sidestep::backends::verbs {

template <typename Number>
void put_number(unsigned char* to, Number number) {
    for (std::size_t i = 0; i < sizeof(Number); ++i) to[i] = static_cast<unsigned char>(number >> (8 * i));
}

template <typename Number>
Number get_number(const unsigned char* from) {
    Number number = 0;
    for (std::size_t i = 0; i < sizeof(Number); ++i)
        number = static_cast<Number>(number | static_cast<Number>(static_cast<Number>(from[i]) << (8 * i)));
    return number;
}

}  // namespace sidestep::backends::verbs
