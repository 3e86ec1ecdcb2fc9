#include "topology/machine_source_reader.hpp"

#include <fmt/format.h>

#include <utility>

#include "base/try.hpp"
#include "topology/nvml_reader.hpp"
#include "topology/nvml_record_reader.hpp"
#include "topology/properties_reader.hpp"
#include "topology/sysfs_reader.hpp"

namespace sidestep::topology {

namespace {

// A record of NVML for 64 GPUs takes about 2 MB.
constexpr std::size_t largest_record = std::size_t{64} << 20;

// "node7" for "/records/node7/".
std::string name_of_folder(std::string path) {
    while (path.ends_with('/')) path.pop_back();
    path = path.substr(path.rfind('/') + 1);
    return path.empty() || path == "." || path == ".." ? "record" : path;
}

}  // namespace

Result<MachineSource> open_source(const std::string& root) {
    MachineSource source{driver::MachineFiles(root), nullptr, ""};
    if (root.empty()) {
        auto nvml = driver::load_nvml();
        if (nvml.ok()) {
            source.nvml = std::move(*nvml);
        } else {
            source.no_nvml = nvml.error().message;
        }
        return source;
    }
    if (!source.files.exists("/")) {
        return Error{ErrorCode::not_found, "there is no such folder", root,
                     "give a folder that sidestep topo --record wrote"};
    }
    if (source.files.exists(MachineSource::unfinished))
        return Error{ErrorCode::invalid_argument, "the machine was not recorded to the end", root,
                     "remove the folder, and record the machine again"};
    const auto record = source.files.text(MachineSource::nvml_record, largest_record);
    if (!record) {
        source.no_nvml = fmt::format("read from {}, which holds no record of NVML", root);
        return source;
    }
    SIDESTEP_TRY(source.nvml, nvml_from_json(*record, root + MachineSource::nvml_record));
    return source;
}

Result<Topology> read_topology(const MachineSource& source) {
    PartsBuilder builder = read_sysfs(source.files);
    builder.parts().name = source.files.live() ? "live" : name_of_folder(source.files.root());
    builder.parts().emulated = !source.files.live();
    if (source.nvml) {
        merge_nvml(builder, *source.nvml);
    } else {
        builder.note(source.no_nvml);
    }
    add_properties(builder, source);
    for (const std::string& path : source.files.strays())
        builder.note(path + " leads out of the record: it was not read");
    return Topology::create(std::move(builder.parts()));
}

}  // namespace sidestep::topology
