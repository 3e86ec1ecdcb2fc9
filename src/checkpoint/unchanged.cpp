#include <fmt/format.h>

#include <sidestep/checkpoint.hpp>

#include "base/file_version.hpp"
#include "base/try.hpp"
#include "checkpoint/content.hpp"
#include "driver/files.hpp"

// Whether a file of a checkpoint is still the one that was opened.
namespace sidestep {
namespace {

constexpr const char* hint = "open the checkpoint again when nobody writes to it";

// The first tensor of a file that reaches beyond `size` bytes.
std::string first_beyond(const Checkpoint& checkpoint, std::size_t file, Bytes size) {
    for (const TensorInfo& tensor : checkpoint.tensors())
        if (tensor.file == file && tensor.offset + tensor.bytes > size)
            return fmt::format("tensor {} needs bytes {} to {}", tensor.name, tensor.offset,
                               tensor.offset + tensor.bytes);
    return "no tensor needs the rest";
}

}  // namespace

Result<void> Checkpoint::check_file(std::size_t file) const {
    if (file >= files().size())
        return Error{ErrorCode::invalid_argument,
                     fmt::format("there is no file {}: the checkpoint has {}", file, files().size()),
                     content_->path,
                     {}};
    SIDESTEP_CHECK(check_here("looking at a file again"));
    const CheckpointFile& known = files()[file];
    SIDESTEP_TRY(const auto facts, driver::file_facts(known.path));
    if (!facts)
        return Error{ErrorCode::not_found,
                     fmt::format("{} was there when it was opened and is gone", known.path),
                     known.path,
                     {}};
    if (facts->size < known.size)
        return Error{ErrorCode::end_of_file,
                     fmt::format("{} had {} bytes when it was opened and now has {}: {}", known.path,
                                 known.size, facts->size, first_beyond(*this, file, facts->size)),
                     known.path, hint};
    if (known.identity != 0 && !base::same_content(facts->version, known.identity))
        return Error{ErrorCode::mismatch,
                     fmt::format("{} has changed: it is not as it was when it was opened", known.path),
                     known.path, hint};
    return {};
}

}  // namespace sidestep
