// Pieces of text that Topology::to_text() and the tree are made of.
#pragma once

#include <string>
#include <vector>

#include "topology/outline.hpp"

namespace sidestep::topology {

using Row = std::vector<std::string>;

// Lines up the columns of a table, two blanks apart, each line after `indent`. UTF-8 beyond ASCII counts by
// its bytes.
std::string table(const std::vector<Row>& rows, const std::string& indent);

// A terminal shows no more columns, and the work grows with the square.
constexpr std::size_t max_matrix_devices = 64;

// GPUs, network cards and drives, in this order, of one machine or (-1) of all.
std::vector<DeviceId> matrix_devices(const Outline& outline, int node);

// The classes of all pairs, with the processors and the NUMA node at the right and the letters explained
// below. Of devices of several machines each is called by its whole name. The letters are nvidia-smi's.
std::string matrix_text(const Outline& outline, const std::vector<DeviceId>& ids);
// What a class means, in half a sentence.
const char* class_words(PathClass kind);

// The machines, the NVLinks they share and their network: the lines a cluster has beyond those of a machine.
std::string cluster_text(const Outline& outline);

// Of a machine that is not this one: "emulated" of a built-in machine, "recorded" of a real one from a file or a record.
const char* where_from(const Topology& topology);
// "dgx-h100 (emulated): 8 GPUs", "...: 1024 GPUs in 128 machines".
std::string headline(const Outline& outline);

// "8 rails", "32 leaf switches", ... of the network between machines; empty where there is none.
std::string network_words(const Outline& outline);
// "72 GPUs of 18 machines share 18 NVSwitches"; empty where machines share none.
std::string shared_nvlink_words(const Outline& outline);

}  // namespace sidestep::topology
