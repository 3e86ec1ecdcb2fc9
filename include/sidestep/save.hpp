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

// `data` has as many bytes as dtype and shape say, in C order: at a gpu or host place, a range of a file, or memory that another
// process published (Buffer::shared). Each may be of a node (docs/network.md).
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
    // As those of CopyOptions; max_staging is pinned memory for each GPU that is saved from, chunk what is written at a time.
    bool sync_file = CopyOptions{}.sync_file;
    // A save over an earlier checkpoint or file flushes whatever sync_file says, so that a power cut leaves one of the two whole.
    // false leaves that out.
    bool sync_replaced = true;
    bool verify = CopyOptions{}.verify;
    PageCache page_cache = CopyOptions{}.page_cache;
    Bytes max_staging = CopyOptions{}.max_staging;
    Bytes chunk = CopyOptions{}.chunk;
    std::chrono::milliseconds deadline = CopyOptions{}.deadline;
    std::chrono::milliseconds stall_limit = CopyOptions{}.stall_limit;
};

}  // namespace sidestep
