// Writing tensors to safetensors files.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <sidestep/api.h>
#include <sidestep/buffer.hpp>
#include <sidestep/dtype.hpp>
#include <sidestep/options.hpp>

namespace sidestep {

// `data` has as many bytes as dtype and shape say, in C order, at any gpu or host place.
struct TensorToSave {
    std::string name;
    Dtype dtype = Dtype::u8;
    std::vector<std::uint64_t> shape;
    Buffer data;
};

struct SaveOptions {
    // Text pairs for __metadata__.
    std::vector<std::pair<std::string, std::string>> metadata;
    // Several files of at most about this many bytes of tensors, model-00001-of-00003.safetensors and so on
    // with model.safetensors.index.json, in the folder `path`. 0: one file called `path`.
    Bytes shard_bytes = 0;
    // Also writes PATH.manifest.json with the checksums of the files (docs/checkpoint.md).
    bool manifest = false;
    bool sync_file = false;  // flushed to the device before they get their names
    bool verify = false;     // reads files and tensors again and compares
    PageCache page_cache = PageCache::automatic;
    Bytes max_staging = Bytes{256} << 20;           // pinned memory of each GPU that is saved from, at most
    Bytes chunk = 0;                                // bytes written at a time; 0: the library chooses
    std::chrono::milliseconds deadline{0};          // of the whole save; 0: none
    std::chrono::milliseconds stall_limit{60'000};  // without a byte written; 0: none
};

}  // namespace sidestep
