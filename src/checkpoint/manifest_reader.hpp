// Manifests in files.
#pragma once

#include <string>

#include "checkpoint/manifest.hpp"
#include "driver/replaced_file.hpp"

namespace sidestep::checkpoint {

Result<Manifest> read_manifest(const std::string& path);
// `file` was begun for `path`, and appears under that name.
Result<void> write_manifest(const Manifest& manifest, driver::ReplacedFile& file, const std::string& path);

}  // namespace sidestep::checkpoint
