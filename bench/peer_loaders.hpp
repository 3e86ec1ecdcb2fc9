// Figures of the loaders of Python programs.
#pragma once

#include "bench/peers.hpp"

namespace sidestep::bench {

// Runs safetensors, InstantTensor, fastsafetensors and KvikIO with PyTorch, each in a process of its own, on
// a file with `bytes` bytes of tensors, warm, onto the first GPU and, a thread each, onto all. A loader that
// is not there, or fails, becomes a note with what it said.
std::vector<PeerFigure> run_loaders(const Options& options, Bytes bytes, std::vector<std::string>& notes);

// Of what one run prints: one figure for each time.
Result<std::vector<PeerFigure>> parse_loader(const std::string& text, Bytes bytes);

}  // namespace sidestep::bench
