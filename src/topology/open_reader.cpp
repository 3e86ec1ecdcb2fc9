// Machines by name.
#include <sys/stat.h>

#include <fmt/format.h>

#include <sidestep/nccl_xml.hpp>
#include <sidestep/topology.hpp>

#include "base/environment.hpp"
#include "base/try.hpp"
#include "topology/text_file_reader.hpp"

namespace sidestep {

namespace {

// NCCL's own files are below a megabyte; read_nccl_xml() refuses more than this too.
constexpr std::size_t largest_xml = std::size_t{256} << 20;

bool is_folder(const std::string& path) {
    struct stat status = {};
    return ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

constexpr std::size_t largest_probe = std::size_t{64} << 20;

}  // namespace

Result<ProbeReport> ProbeReport::load(const std::string& path) {
    SIDESTEP_TRY(const std::string text, topology::read_text_file(path, largest_probe));
    return from_json(text, path);
}

Result<Topology> Topology::open(std::string_view machine, std::string_view as) {
    // Read in any case: a variable that makes no sense is an error of every command.
    SIDESTEP_TRY(const base::Environment environment, base::Environment::read());
    std::string name = machine.empty() ? environment.machine : std::string(machine);
    // "azure.xml!as=dgx-a100": so every way to name a machine can lend it NVLinks.
    std::string lender(as);
    if (const auto at = name.rfind("!as="); lender.empty() && at != std::string::npos) {
        lender = name.substr(at + 4);
        name.resize(at);
    }
    if (name.ends_with(".xml")) {
        SIDESTEP_TRY(const std::string text, topology::read_text_file(name, largest_xml));
        return read_nccl_xml(text, name, lender);
    }
    if (!lender.empty()) {
        return Error{ErrorCode::invalid_argument, fmt::format("{} cannot be read as {}", name, lender), "",
                     "only an NCCL topology file (.xml) can lack what a built-in machine lends"};
    }
    if (name == "live") return live();
    if (name.ends_with(".json")) return load(name);
    if (name.find('/') == std::string::npos) return model(name);
    if (is_folder(name)) return live(name);
    return load(name);
}

}  // namespace sidestep
