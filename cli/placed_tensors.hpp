// Tensors of `sidestep save` that lie in places: NAME=PLACE[,dtype=TYPE][,shape=EXTENTxEXTENT...].
#pragma once

#include <string>
#include <vector>

#include <sidestep/sidestep.hpp>

namespace sidestep::cli {

// Whether a source is one of these. A path of a checkpoint may hold a '=' too: one that is there, or begins with what kind of
// place it is.
bool is_placed_tensor(const std::string& source);

// Without a type a tensor is bytes, without a shape a list of as many as there are. Asks for sizes, and may block.
Result<std::vector<TensorToSave>> placed_tensors(const Context& context,
                                                 const std::vector<std::string>& sources);

}  // namespace sidestep::cli
