// The own JSON format of topologies.
#include <sidestep/nccl_xml.hpp>

#include "tests/fuzz/fuzz_target.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace sidestep;
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    const auto topology = Topology::from_json(text, "f.json");
    if (!topology.ok()) {
        fuzz::require(!topology.error().message.empty(), "a refusal has words");
        fuzz::require(topology.error().where.substr(0, 6) == "f.json", "a refusal names the file",
                      topology.error().to_string());
        return 0;
    }
    fuzz::ask(*topology);
    const std::string written = topology->to_json();
    const auto again = Topology::from_json(written, "again.json");
    fuzz::require(again.ok(), "a written file reads", again.ok() ? "" : again.error().to_string());
    fuzz::require(again->parts() == topology->parts(), "a round trip is exact", written);
    fuzz::require(again->to_json() == written, "writing it again changes nothing", written);

    // Any machine that NCCL's format can hold, whatever its devices are called.
    const auto xml = write_nccl_xml(*topology);
    if (!xml.ok()) return 0;
    const auto from_xml = read_nccl_xml(*xml, "f.xml");
    fuzz::require(from_xml.ok(), "a file written for NCCL reads",
                  from_xml.ok() ? "" : from_xml.error().to_string() + "\n" + *xml);
    return 0;
}
