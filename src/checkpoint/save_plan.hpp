// What a save writes: from tensors and options to files, headers and the index. Pure.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <sidestep/save.hpp>
#include "transfer/spread.hpp"

namespace sidestep::checkpoint {

struct SavePlan {
    // Without options; its placement owns the headers that lie among the memories.
    transfer::Spread spread;
    std::vector<Bytes> file_sizes;  // by file of the spread
    std::string index_path;         // empty: no index
    std::string index_text;
    std::string manifest_path;  // empty: none is wanted
};

// `path` as for Context::save. Fails with invalid_argument, naming the tensor, for a name twice, a size that
// does not fit type and shape, memory that is neither at a gpu nor a host place, and what the format cannot
// hold.
Result<SavePlan> plan_save(const std::vector<TensorToSave>& tensors, const std::string& path,
                           const SaveOptions& options);

}  // namespace sidestep::checkpoint
