// Machines by name.
#include <fmt/format.h>

#include <sidestep/nccl_xml.hpp>
#include <sidestep/topology.hpp>

#include "base/environment.hpp"
#include "base/try.hpp"
#include "topology/faults.hpp"
#include "topology/hwloc_xml.hpp"
#include "topology/lspci_text.hpp"
#include "topology/machine_name_reader.hpp"
#include "topology/smi_matrix.hpp"
#include "topology/text_file_reader.hpp"

namespace sidestep {

namespace {

// NCCL's own files are below a megabyte; read_nccl_xml() refuses more than this too.
constexpr std::size_t largest_xml = std::size_t{256} << 20;

constexpr std::size_t largest_probe = std::size_t{64} << 20;

Result<Topology> read_named(const topology::MachineName& machine, std::string_view as) {
    using Kind = topology::MachineName::Kind;
    switch (machine.kind) {
        case Kind::live:
            return Topology::live();
        case Kind::record:
            return Topology::live(machine.name);
        case Kind::json:
            return Topology::load(machine.name);
        case Kind::model:
            return Topology::model(machine.name);
        case Kind::xml:
        case Kind::text:
            break;
    }
    SIDESTEP_TRY(const std::string text, topology::read_text_file(machine.name, largest_xml));
    if (machine.kind == Kind::text)
        return topology::is_lspci_text(text) ? topology::read_lspci(text, machine.name)
                                             : topology::read_smi_matrix(text, machine.name);
    if (as.empty() && topology::is_hwloc_xml(text)) return topology::read_hwloc_xml(text, machine.name);
    return read_nccl_xml(text, machine.name, as);
}

}  // namespace

Result<ProbeReport> ProbeReport::load(const std::string& path) {
    SIDESTEP_TRY(const std::string text,
                 topology::read_text_file(path, largest_probe,
                                          {"probe report", "sidestep doctor --probe --save writes one"}));
    return from_json(text, path);
}

Result<Topology> Topology::open(std::string_view machine, std::string_view as) {
    // Read in any case: a variable that makes no sense is an error of every command.
    SIDESTEP_TRY(const base::Environment environment, base::Environment::read());
    const std::string text = machine.empty() ? environment.machine : std::string(machine);
    SIDESTEP_TRY(const topology::MachineName name, topology::read_machine_name(text));
    const std::string lender = as.empty() ? name.lender : std::string(as);
    if (!lender.empty() && name.kind != topology::MachineName::Kind::xml) {
        return Error{ErrorCode::invalid_argument, fmt::format("{} cannot be read as {}", name.name, lender),
                     "", "only an NCCL topology file (.xml) can lack what a built-in machine lends"};
    }
    SIDESTEP_TRY(Topology topology, read_named(name, lender));
    if (name.faults.empty()) return topology;
    Parts parts = topology.parts();
    for (const std::string& fault : name.faults) SIDESTEP_CHECK(topology::put_fault(parts, fault));
    parts.name = text;
    return create(std::move(parts));
}

}  // namespace sidestep
