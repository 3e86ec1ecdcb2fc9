#include "checkpoint/manifest_reader.hpp"

#include "base/try.hpp"
#include "checkpoint/files_reader.hpp"

namespace sidestep::checkpoint {
namespace {

// Checksums of some 25 TB.
constexpr Bytes largest_manifest = Bytes{512} << 20;

}  // namespace

Result<Manifest> read_manifest(const std::string& path) {
    SIDESTEP_TRY(const std::string text, read_whole(path, largest_manifest, "a manifest"));
    return parse_manifest(text, path);
}

Result<void> write_manifest(const Manifest& manifest, driver::ReplacedFile& file, const std::string& path) {
    const std::string text = to_json(manifest);
    SIDESTEP_CHECK(driver::write_range(file.fd(), 0, text.data(), text.size(), path));
    return file.commit(false);
}

}  // namespace sidestep::checkpoint
