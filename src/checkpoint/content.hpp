// What a Checkpoint holds.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <sidestep/checkpoint.hpp>

#include "checkpoint/names.hpp"

namespace sidestep {

struct Checkpoint::Content {
    std::string path;   // as it was given; of several the first, and how many more
    std::string index;  // as Headers'
    std::vector<TensorInfo> tensors;
    std::vector<CheckpointFile> files;
    Bytes bytes = 0;
    std::vector<std::pair<std::string, std::string>> metadata;
    std::vector<std::string> notes;
    checkpoint::NameTable names;

    checkpoint::NameTable::NameOf name_of() const {
        return [this](std::size_t i) { return std::string_view(tensors[i].name); };
    }
    // Sets `bytes` and `names`; once `tensors` are what they stay.
    void finish() {
        bytes = 0;
        for (const TensorInfo& tensor : tensors) bytes += tensor.bytes;
        names = checkpoint::NameTable(tensors.size(), name_of());
    }
};

}  // namespace sidestep
