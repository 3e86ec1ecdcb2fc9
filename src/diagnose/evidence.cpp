#include "diagnose/evidence.hpp"

#include <utility>

#include "base/try.hpp"
#include "diagnose/driver_records.hpp"
#include "topology/machine_source_reader.hpp"

namespace sidestep::diagnose {

namespace {

constexpr std::size_t largest_record = std::size_t{16} << 20;

// A record that lacks a driver's answers is a machine without that driver.
template <typename Facts, typename Parse>
Result<Facts> recorded(const driver::MachineFiles& files, const char* path, Parse parse) {
    const auto text = files.text(path, largest_record);
    if (text) return parse(*text, files.root() + path);
    Facts facts;
    facts.reason = "the record holds nothing of it";
    return facts;
}

}  // namespace

Result<Evidence> gather(topology::MachineSource source) {
    SIDESTEP_TRY(Topology topology, topology::read_topology(source));
    driver::CudaFacts cuda;
    driver::VerbsFacts verbs;
    driver::KernelLog log{false, "the record holds nothing of it", {}};
    if (source.files.live()) {
        cuda = driver::read_cuda_facts();
        verbs = driver::read_verbs_facts();
        log = driver::read_kernel_log();
    } else {
        SIDESTEP_TRY(cuda, recorded<driver::CudaFacts>(source.files, cuda_record, cuda_from_json));
        SIDESTEP_TRY(verbs, recorded<driver::VerbsFacts>(source.files, verbs_record, verbs_from_json));
        if (const auto text = source.files.text(kernel_log_record, largest_record))
            log = {true, "", driver::telling_lines(*text)};
    }
    return Evidence{
        std::move(topology), std::move(source.files), std::move(source.nvml), std::move(source.no_nvml),
        std::move(cuda),     std::move(verbs),        std::nullopt,           false,
        std::move(log)};
}

Result<Evidence> gather(const std::string& root) {
    SIDESTEP_TRY(topology::MachineSource source, topology::open_source(root));
    return gather(std::move(source));
}

}  // namespace sidestep::diagnose
