#include "checkpoint/unchanged.hpp"

#include <fmt/format.h>

#include "base/try.hpp"
#include "checkpoint/content.hpp"
#include "driver/files.hpp"

namespace sidestep {
namespace checkpoint {
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

Result<std::uint64_t> check_unchanged(const Checkpoint& checkpoint, std::size_t number, const char* since) {
    const CheckpointFile& file = checkpoint.files()[number];
    SIDESTEP_TRY(const auto facts, driver::file_facts(file.path));
    if (!facts)
        return Error{ErrorCode::not_found,
                     fmt::format("{} was there {} and is gone", file.path, since),
                     file.path,
                     {}};
    if (facts->size < file.size)
        return Error{ErrorCode::end_of_file,
                     fmt::format("{} had {} bytes {} and now has {}: {}", file.path, file.size, since,
                                 facts->size, first_beyond(checkpoint, number, facts->size)),
                     file.path, hint};
    if (file.identity != 0 && facts->version != file.identity)
        return Error{ErrorCode::mismatch,
                     fmt::format("{} has changed: it is not as it was {}", file.path, since), file.path,
                     hint};
    return facts->identity;
}

}  // namespace checkpoint

Result<void> Checkpoint::check_file(std::size_t file) const {
    if (file >= files().size())
        return Error{ErrorCode::invalid_argument,
                     fmt::format("there is no file {}: the checkpoint has {}", file, files().size()),
                     content_->path,
                     {}};
    SIDESTEP_CHECK(checkpoint::check_unchanged(*this, file, "when it was opened"));
    return {};
}

}  // namespace sidestep
