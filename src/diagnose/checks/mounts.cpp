#include "diagnose/checks/mounts.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <sstream>

namespace sidestep::diagnose {

namespace {

// The kernel writes blanks, tabs, newlines and backslashes of paths as "\040".
std::string unescaped(const std::string& text) {
    std::string plain;
    for (std::size_t at = 0; at < text.size(); ++at) {
        const bool octal =
            text[at] == '\\' && at + 3 < text.size() && text.find_first_not_of("01234567", at + 1) >= at + 4;
        if (!octal) {
            plain += text[at];
            continue;
        }
        plain += static_cast<char>(std::strtol(text.substr(at + 1, 3).c_str(), nullptr, 8));
        at += 3;
    }
    return plain;
}

std::optional<Mount> parse(const std::string& line) {
    std::istringstream words(line);
    std::string id;
    std::string parent;
    std::string root;
    Mount mount;
    words >> id >> parent >> mount.device >> root >> mount.point >> mount.options;
    // Optional fields end at a lone '-'.
    for (std::string word; words >> word && word != "-";) {
    }
    words >> mount.type >> mount.source >> mount.super_options;
    if (mount.type.empty()) return std::nullopt;
    mount.point = unescaped(mount.point);
    mount.source = unescaped(mount.source);
    return mount;
}

constexpr int deepest_stack = 8;

// `place` is the real path of a block device below /sys/devices. Adds what it stands on.
void climb_down(const driver::MachineFiles& files, std::string place, int depth, BlockDevice& found) {
    if (place.empty() || depth > deepest_stack) return;
    if (files.exists(place + "/partition")) place = place.substr(0, place.rfind('/'));
    const std::string name = place.substr(place.rfind('/') + 1);
    if (found.name.empty()) found.name = name;
    if (files.exists(place + "/md")) {
        const std::string level = files.line(place + "/md/level").value_or("level not told");
        found.raid0 = found.layer.empty() && level == "raid0";
        found.layer += fmt::format("{}RAID ({})", found.layer.empty() ? "" : " on ", level);
    } else if (files.exists(place + "/dm")) {
        found.raid0 = false;
        found.layer +=
            fmt::format("{}device mapper (LVM, encryption or multipath)", found.layer.empty() ? "" : " on ");
    } else if (name.starts_with("nvme")) {
        found.on_nvme = true;
    }
    for (const std::string& below : files.names(place + "/slaves")) {
        BlockDevice lower;
        climb_down(files, files.real_path(fmt::format("{}/slaves/{}", place, below)), depth + 1, lower);
        found.on_nvme = found.on_nvme || lower.on_nvme;
        if (lower.layer.empty() || found.layer.ends_with(lower.layer)) continue;
        found.raid0 = false;
        found.layer += " on " + lower.layer;
    }
}

}  // namespace

std::string Mount::option(const std::string& name) const {
    std::istringstream parts(super_options);
    for (std::string part; std::getline(parts, part, ',');) {
        if (part.starts_with(name + "=")) return part.substr(name.size() + 1);
    }
    return {};
}

std::optional<std::vector<Mount>> mounts(const driver::MachineFiles& files) {
    const auto text = files.text(mounts_path, std::size_t{1} << 20);
    if (!text) return std::nullopt;
    std::vector<Mount> all;
    std::istringstream lines(*text);
    for (std::string line; std::getline(lines, line);) {
        if (auto mount = parse(line)) all.push_back(std::move(*mount));
    }
    return all;
}

const Mount* mount_of(const std::vector<Mount>& all, const std::string& path) {
    const Mount* best = nullptr;
    for (const Mount& mount : all) {
        const bool holds = mount.point == "/" || path == mount.point || path.starts_with(mount.point + "/");
        if (holds && (best == nullptr || mount.point.size() >= best->point.size())) best = &mount;
    }
    return best;
}

BlockDevice block_device(const driver::MachineFiles& files, const Mount& mount) {
    BlockDevice found;
    std::string place = "/sys/dev/block/" + mount.device;
    if (mount.device.starts_with("0:")) {
        if (!mount.source.starts_with("/dev/")) return found;
        // A name such as /dev/mapper/data is a link to dm-0.
        const std::string named = files.link_target(mount.source).value_or(mount.source);
        place = "/sys/class/block/" + named.substr(named.rfind('/') + 1);
    }
    climb_down(files, files.real_path(place), 0, found);
    return found;
}

}  // namespace sidestep::diagnose
