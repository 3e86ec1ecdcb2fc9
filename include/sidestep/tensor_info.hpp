// One tensor of a checkpoint, without its data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <sidestep/dtype.hpp>
#include <sidestep/units.hpp>

namespace sidestep {

// C order, little endian, no strides.
struct TensorInfo {
    std::string name;
    Dtype dtype = Dtype::u8;
    std::string type_name;             // as the file spells it: "BF16"; of GGUF "Q4_K"
    std::vector<std::uint64_t> shape;  // empty: a scalar. Of GGUF: outermost first, as everywhere else
    std::size_t file = 0;              // position in Checkpoint::files()
    Bytes offset = 0;                  // of the first byte in that file
    Bytes bytes = 0;

    std::uint64_t elements() const {
        std::uint64_t product = 1;
        for (const std::uint64_t extent : shape) product *= extent;
        return product;
    }
};

}  // namespace sidestep
