#include "checkpoint/save_closing.hpp"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"
#include "checkpoint/files_reader.hpp"
#include "checkpoint/folder_reader.hpp"
#include "checkpoint/shard_index.hpp"
#include "driver/files.hpp"

namespace sidestep::checkpoint {
namespace {

constexpr std::chrono::milliseconds turn_wait{2000};

bool is_there(const std::string& path) {
    const auto facts = driver::file_facts(path);
    return facts.ok() && facts->has_value();
}

// The index beside a file that is saved as the model of its folder; empty where there is none.
std::string index_beside(const std::string& path) {
    const auto [folder, name] = driver::split_path(path);
    std::string index = fmt::format("{}/{}", folder, index_name);
    return name == single_name && is_there(index) ? index : std::string();
}

}  // namespace

SaveClosing::SaveClosing(const SavePlan& plan, const SaveOptions& options)
    : first_(plan.spread.files.front().path),
      folder_(driver::split_path(first_).folder),
      index_path_(plan.index_path),
      index_text_(plan.index_text),
      manifest_path_(plan.manifest_path),
      sync_(options.sync_file),
      sync_replaced_(options.sync_replaced) {
    for (const auto& file : plan.spread.files) names_.push_back(driver::split_path(file.path).name);
    if (!wants_checksums()) return;
    manifest_.block = transfer::Spread::block;
    for (std::size_t file = 0; file < plan.spread.files.size(); ++file) {
        const Bytes size = plan.file_sizes[file];
        manifest_.files.push_back({driver::split_path(plan.spread.files[file].path).name, size,
                                   std::vector<std::uint64_t>(block_count(size, manifest_.block))});
    }
}

Result<void> SaveClosing::look(std::size_t file, Bytes offset, const void* data, Bytes size) {
    Manifest::File& sums = manifest_.files[file];
    const Bytes block = offset / manifest_.block;
    if (offset % manifest_.block != 0 || (size != manifest_.block && offset + size != sums.size))
        return Error{
            ErrorCode::internal, fmt::format("{} bytes at {} are no block", size, offset), sums.name, {}};
    sums.blocks[block] = hash_block(data, size);
    return {};
}

Result<void> SaveClosing::take_turn() {
    auto turn = driver::LockFile::take(save_lock(folder_), turn_wait);
    if (!turn)
        return Error{
            turn.error().code,
            fmt::format("another save is giving files in {} their names: {}", folder_, turn.error().message),
            folder_,
            turn.error().hint.empty() ? "save to a folder from one place at a time" : turn.error().hint};
    turn_ = std::move(*turn);
    return {};
}

// Shards of another number have other names: the index tells of them too.
bool SaveClosing::replaces() const {
    return !stale_index_.empty() || is_there(index_path_) ||
           std::any_of(names_.begin(), names_.end(),
                       [this](const std::string& name) { return is_there(beside(folder_, name)); });
}

Result<void> SaveClosing::begin() {
    if (index_path_.empty()) stale_index_ = index_beside(first_);
    sync_ = sync_ || (sync_replaced_ && replaces());
    if (index_path_.empty()) return {};
    SIDESTEP_TRY(const auto facts, driver::file_facts(folder_));
    if (!facts)
        return Error{ErrorCode::not_found, fmt::format("the folder {} does not exist", folder_), "save",
                     "make it, or ask for one file of that name, not for several"};
    if (facts->type != driver::FileType::directory)
        return Error{ErrorCode::invalid_argument,
                     fmt::format("{} is a {}, and several files need a folder", folder_,
                                 driver::to_string(facts->type)),
                     "save", "ask for one file of that name, not for several"};
    const std::string name = driver::split_path(folder_).name;
    if (!wants_checksums() || (name != "." && name != "..")) return {};
    std::error_code failure;
    const std::string real = std::filesystem::canonical(folder_, failure).string();
    if (!failure) manifest_path_ = real + ".manifest.json";
    return {};
}

Result<void> SaveClosing::before_names() {
    if (!wanted()) return {};
    SIDESTEP_CHECK(take_turn());
    Result<void> ready = set_aside();
    if (!ready) turn_.reset();
    return ready;
}

// What stands in the index's place while files get their names.
Result<std::optional<std::string>> SaveClosing::meanwhile() {
    SIDESTEP_TRY(const auto facts, driver::file_facts(index_path_));
    if (!facts) return std::optional(interrupted_index());
    SIDESTEP_TRY(const std::string text, read_whole(index_path_, largest_index, "the earlier index"));
    return earlier_.keep(folder_, text, names_);
}

Result<void> SaveClosing::set_aside() {
    if (wants_checksums()) SIDESTEP_CHECK(manifest_file_.prepare(manifest_path_, to_json(manifest_), ""));
    if (!index_path_.empty()) {
        SIDESTEP_TRY(const auto text, meanwhile());
        SIDESTEP_CHECK(index_file_.prepare(index_path_, index_text_, text));
    }
    Result<void> ready = manifest_file_.set_aside(sync_);
    if (ready) ready = index_file_.set_aside(sync_);
    if (!ready) (void)without_names().ok();
    return ready;
}

Result<void> SaveClosing::without_names() {
    const Result<void> index = index_file_.put_back(sync_);
    const Result<void> manifest = manifest_file_.put_back(sync_);
    if (index) earlier_.drop();
    turn_.reset();
    return manifest ? index : manifest;
}

Result<std::vector<std::string>> SaveClosing::after_names() {
    const std::unique_ptr<driver::LockFile> turn = std::move(turn_);  // until the end of this
    SIDESTEP_CHECK(index_file_.commit(sync_));
    if (!index_path_.empty()) EarlierShards::drop_all(folder_);
    SIDESTEP_CHECK(manifest_file_.commit(sync_));
    std::vector<std::string> notes;
    if (!stale_index_.empty()) {
        SIDESTEP_TRY(std::string note, remove_stale_index());
        if (!note.empty()) notes.push_back(std::move(note));
    }
    const std::string single = fmt::format("{}/{}", driver::split_path(index_path_).folder, single_name);
    if (!index_path_.empty() && is_there(single))
        notes.push_back(
            fmt::format("{} is none of the files saved, and some libraries read it first", single));
    return notes;
}

// One that names the new file was meant to stay.
Result<std::string> SaveClosing::remove_stale_index() const {
    SIDESTEP_TRY(const std::string text,
                 read_whole(stale_index_, largest_index, "the index beside the file"));
    if (const auto index = parse_shard_index(text, stale_index_); index) {
        const auto& names = index->shards;
        if (std::find(names.begin(), names.end(), single_name) != names.end()) return std::string();
    }
    std::error_code failure;
    std::filesystem::remove(stale_index_, failure);
    if (!failure) EarlierShards::drop_all(folder_);
    if (!failure)
        return fmt::format("removed {} of an earlier save, which would be read instead of this file",
                           stale_index_);
    return Error{ErrorCode::io_error,
                 fmt::format("the file is saved, but {} of an earlier save, which is read first, cannot be "
                             "removed: {}",
                             stale_index_, failure.message()),
                 stale_index_,
                 {}};
}

}  // namespace sidestep::checkpoint
