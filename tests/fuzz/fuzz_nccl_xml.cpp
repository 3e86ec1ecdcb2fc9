// NCCL's topology files. The first byte chooses a machine that lends NVLinks, or none.
#include <sidestep/nccl_xml.hpp>

#include "tests/fuzz/fuzz_target.hpp"

namespace sidestep::fuzz {
namespace {

// A file that was read can be written, and what is written reads the same from then on.
void check_written(const Topology& topology) {
    const auto first = write_nccl_xml(topology);
    if (!first.ok()) {
        require(first.error().code == ErrorCode::unsupported, "only clusters and odd trees are refused",
                first.error().to_string());
        return;
    }
    const auto again = read_nccl_xml(*first, "again.xml");
    require(again.ok(), "a written file reads", again.ok() ? "" : again.error().to_string() + "\n" + *first);
    require(again->gpu_count() == topology.gpu_count(), "GPUs come back", *first);
    const auto second = write_nccl_xml(*again);
    require(second.ok(), "a written file can be written again", *first);
    require(*second == *first, "writing it again changes nothing", *first + "\n" + *second);
}

}  // namespace
}  // namespace sidestep::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace sidestep;
    std::string_view text(reinterpret_cast<const char*>(data), size);
    const bool borrows = !text.empty() && text.front() == '+';
    if (borrows) text.remove_prefix(1);
    const auto topology = read_nccl_xml(text, "f.xml", borrows ? "dgx-h100" : "");
    if (!topology.ok()) {
        fuzz::require(!topology.error().message.empty(), "a refusal has words");
        fuzz::require(topology.error().where.substr(0, 5) == "f.xml", "a refusal names the file",
                      topology.error().to_string());
        return 0;
    }
    fuzz::ask(*topology);
    fuzz::check_written(*topology);
    return 0;
}
