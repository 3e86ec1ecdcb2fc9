// Reading: the public face.
#include <sidestep/nccl_xml.hpp>

#include <new>
#include <optional>

#include "base/try.hpp"
#include "topology/nccl_xml/draft.hpp"
#include "topology/text_file_reader.hpp"

namespace sidestep {

namespace {

// "ndv4-topo" for "/etc/topo/ndv4-topo.xml".
std::string name_of_file(const std::string& where) {
    std::string name = where.substr(where.rfind('/') + 1);
    const auto end = name.rfind(".xml");
    if (end != std::string::npos && end > 0 && end + 4 == name.size()) name.resize(end);
    return name;
}

Result<Topology> read(std::string_view text, const std::string& where, std::optional<Topology> lender) {
    SIDESTEP_TRY(topology::nccl_xml::Draft draft, topology::nccl_xml::read_draft(text));
    SIDESTEP_CHECK(topology::nccl_xml::resolve(draft));
    Topology::Parts parts = std::move(draft.parts);
    if (parts.name.empty()) parts.name = name_of_file(where);
    parts.emulated = true;
    // What NCCL allows between GPUs without NVLink, unless NCCL_P2P_LEVEL says otherwise.
    parts.pcie_peers = PathClass::pxb;
    if (lender) SIDESTEP_CHECK(topology::nccl_xml::overlay(parts, *lender));
    topology::nccl_xml::note_what_is_missing(parts);
    return Topology::create(std::move(parts));
}

}  // namespace

Result<Topology> read_nccl_xml(std::string_view text, const std::string& where, std::string_view as) {
    std::optional<Topology> lender;
    if (!as.empty()) {
        SIDESTEP_TRY(lender, Topology::model(as));
    }
    try {
        auto topology = read(text, where, std::move(lender));
        if (!topology.ok()) return topology::at_file(topology.error(), where);
        return topology;
    } catch (const std::bad_alloc&) {
        return Error{ErrorCode::out_of_memory, "there is no memory to read the topology", where, ""};
    }
}

}  // namespace sidestep
