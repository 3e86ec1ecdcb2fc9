// The names of kinds, as files and people write them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <sidestep/topology.hpp>

namespace sidestep::topology {

std::optional<DeviceKind> parse_device_kind(std::string_view text);
std::optional<LinkKind> parse_link_kind(std::string_view text);
std::optional<PathClass> parse_path_class(std::string_view text);

// "cpu, host_bridge, ...": for hints.
std::string device_kind_names();
std::string link_kind_names();
std::string path_class_names();

}  // namespace sidestep::topology
