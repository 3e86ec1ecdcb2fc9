// Figures of the usual loader of Python programs.
#pragma once

#include "bench/peers.hpp"

namespace sidestep::bench {

// Runs safetensors with PyTorch on a file of its own with `bytes` bytes of tensors, warm, onto the first GPU and, a
// thread each, onto all. Fails where python3 or one of the two is not there, with what it said.
Result<std::vector<PeerFigure>> run_loader(const Options& options, Bytes bytes);

// Of what that run prints: one figure for each time.
Result<std::vector<PeerFigure>> parse_loader(const std::string& text, Bytes bytes);

}  // namespace sidestep::bench
