#include "topology/machine_name_reader.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include <sidestep/topology.hpp>

#include "base/nearest_name.hpp"
#include "driver/machine_files.hpp"

namespace sidestep::topology {

namespace {

using Kind = MachineName::Kind;

// The endings of recorded machines, and what they are. A folder has none.
constexpr std::array<std::pair<std::string_view, Kind>, 3> endings = {
    {{".json", Kind::json}, {".xml", Kind::xml}, {".txt", Kind::text}}};

bool exists(const std::string& path) {
    struct stat status = {};
    return ::stat(path.c_str(), &status) == 0;
}

bool is_folder(const std::string& path) {
    struct stat status = {};
    return ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

// Beside the command, wherever it was installed: PREFIX/bin/sidestep has PREFIX/share/sidestep/machines.
std::string recorded_folder() {
    std::array<char, 4096> path{};
    const ssize_t length = ::readlink("/proc/self/exe", path.data(), path.size());
    if (length <= 0 || static_cast<std::size_t>(length) == path.size()) return {};
    std::string folder(path.data(), static_cast<std::size_t>(length));
    folder.resize(folder.rfind('/'));
    return folder + "/../share/sidestep/machines";
}

bool is_model(std::string_view name) {
    const auto names = Topology::model_names();
    return std::find(names.begin(), names.end(), name.substr(0, name.find('*'))) != names.end();
}

// A record holds at least what the kernel shows of a machine, or what its drivers said.
bool is_record(const std::string& folder) {
    return is_folder(folder + "/sys") || is_folder(folder + "/sidestep") || is_folder(folder + "/proc");
}

Error nothing_of_that_name(const std::string& name) {
    std::vector<std::string> known = Topology::model_names();
    for (std::string& recorded : recorded_names()) known.push_back(std::move(recorded));
    std::string list;
    for (const std::string& one : known) list += (list.empty() ? "" : ", ") + one;
    const std::string hint = fmt::format(
        "the machines are: live, {}; NAME*128 is a cluster of 128 built-in ones; a path to a topology file "
        "or a "
        "recorded folder will do too",
        list);
    return Error{ErrorCode::not_found, fmt::format("there is no machine \"{}\"", name), "",
                 base::did_you_mean(name.substr(0, name.find('*')), known, hint)};
}

Result<MachineName> without_faults(const std::string& name) {
    if (name == "live") return MachineName{Kind::live, name, {}, {}};
    for (const auto& [ending, kind] : endings)
        if (name.ends_with(ending)) return MachineName{kind, name, {}, {}};
    if (is_model(name)) return MachineName{Kind::model, name, {}, {}};
    if (is_folder(name)) {
        if (is_record(name)) return MachineName{Kind::record, name, {}, {}};
        return Error{ErrorCode::invalid_argument,
                     fmt::format("the folder {} is no record of a machine", name), "",
                     "give a folder that sidestep topo --record wrote"};
    }
    if (name.find('/') != std::string::npos) return MachineName{Kind::json, name, {}, {}};
    const std::string recorded = recorded_folder() + "/" + name;
    if (is_folder(recorded)) return MachineName{Kind::record, recorded, {}, {}};
    for (const auto& [ending, kind] : endings)
        if (exists(recorded + std::string(ending)))
            return MachineName{kind, recorded + std::string(ending), {}, {}};
    return nothing_of_that_name(name);
}

}  // namespace

std::vector<std::string> recorded_names() {
    const std::string folder = recorded_folder();
    if (folder.empty()) return {};
    std::vector<std::string> names = driver::MachineFiles(folder).names("/");
    for (std::string& name : names)
        for (const auto& [ending, kind] : endings)
            if (name.ends_with(ending)) name.resize(name.size() - ending.size());
    std::sort(names.begin(), names.end());
    return names;
}

Result<MachineName> read_machine_name(std::string_view text) {
    std::string name(text);
    std::string lender;
    std::vector<std::string> faults;
    if (!exists(name)) {
        const auto first = name.find('!');
        for (auto at = first; at != std::string::npos;) {
            const auto next = name.find('!', at + 1);
            std::string one = name.substr(at + 1, next == std::string::npos ? next : next - at - 1);
            if (one.starts_with("as="))
                lender = one.substr(3);
            else
                faults.push_back(std::move(one));
            at = next;
        }
        name.resize(std::min(first, name.size()));
    }
    auto read = without_faults(name);
    if (!read) return read;
    if (!faults.empty() && (read->kind == Kind::live || read->kind == Kind::record))
        return Error{ErrorCode::invalid_argument, fmt::format("{} is as it is, and takes no faults", name),
                     "fault", "faults are put into built-in machines and topology files: --machine dgx-h100"};
    read->lender = std::move(lender);
    read->faults = std::move(faults);
    return read;
}

}  // namespace sidestep::topology
