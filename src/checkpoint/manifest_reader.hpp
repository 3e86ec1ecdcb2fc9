// Manifests in files.
#pragma once

#include <string>

#include "checkpoint/manifest.hpp"

namespace sidestep::checkpoint {

Result<Manifest> read_manifest(const std::string& path);
// The file appears under its name when it is whole.
Result<void> write_manifest(const Manifest& manifest, const std::string& path);

}  // namespace sidestep::checkpoint
