// NCCL's topology files: what NCCL_TOPO_FILE names and NCCL_TOPO_DUMP_FILE writes, and RCCL's likewise.
//
// docs/nccl-xml.md says what becomes of every element and attribute, and what a file cannot hold.
#pragma once

#include <string>
#include <string_view>

#include <sidestep/api.h>
#include <sidestep/topology.hpp>

namespace sidestep {

// Reads a topology file of NCCL (version 1) or RCCL (version 2). The result counts as emulated. It is called
// what the file's <system> is called, else by the last part of `where` without ".xml".
//
// `where` is the file's name, for errors and that name. `as` names a built-in machine that lends NVSwitches,
// NVLinks, GPU names and memory to a file without NVLink lines, as cloud vendors ship them.
//
// ErrorCode::invalid_argument names line and element ("f.xml: line 12: <pci busid=\"0000:07:00.0\">") and
// holds for files of another version, XML that is none, bus ids that two devices claim, links to GPUs that
// are not there, absurd figures, and files above 256 MiB, 2,000,000 elements or 64 levels;
// ErrorCode::not_found for a machine `as` that is not built in. Time and memory are linear in the file.
// Nothing is opened, and no entity or document type is looked at.
SIDESTEP_API Result<Topology> read_nccl_xml(std::string_view text, const std::string& where,
                                            std::string_view as = "");

// Writes a machine as NCCL reads it: version 1, or version 2 for RCCL. Machines with AMD GPUs are written as
// version 2 whatever was asked, since only RCCL reads them. Drives, host memory, peer access, notes and the
// rates of links that are no PCIe generation's are left out: the format has no place for them.
//
// ErrorCode::invalid_argument for another version; ErrorCode::unsupported for a cluster (write one machine at
// a time) and for trees deeper than NCCL's readers like (60 levels).
SIDESTEP_API Result<std::string> write_nccl_xml(const Topology& topology, int version = 1);

}  // namespace sidestep
