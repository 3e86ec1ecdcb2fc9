#include "checkpoint/earlier_shards.hpp"

#include <sidestep/repair.hpp>

#include <algorithm>
#include <filesystem>
#include <map>
#include <system_error>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/log.hpp"
#include "base/try.hpp"
#include "checkpoint/files_reader.hpp"
#include "checkpoint/folder_reader.hpp"
#include "checkpoint/shard_index.hpp"
#include "driver/files.hpp"
#include "driver/lock_file.hpp"
#include "driver/replaced_file.hpp"

namespace sidestep::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view second_ending = ".sidestep-before";
constexpr std::chrono::milliseconds lock_wait{2000};

std::string second_name(const std::string& name) {
    return fmt::format(".{}{}", name, second_ending);
}

// Empty where it is no second name.
std::string first_name(const std::string& name) {
    if (!name.starts_with('.') || !name.ends_with(second_ending) || name.size() <= second_ending.size() + 1)
        return {};
    return name.substr(1, name.size() - 1 - second_ending.size());
}

// The index with other names of files.
std::string renamed(const std::string& index, const std::map<std::string, std::string>& names) {
    auto json = nlohmann::ordered_json::parse(index);
    for (auto& [tensor, file] : json.at("weight_map").items())
        if (const auto found = names.find(file.get<std::string>()); found != names.end())
            file = found->second;
    return json.dump(2) + "\n";
}

// Of a symbolic link the file that it leads to: that is the one that is replaced.
std::error_code link(const std::string& from, const std::string& to) {
    std::error_code failure;
    fs::remove(to, failure);
    const fs::path file = fs::canonical(from, failure);
    if (!failure) fs::create_hard_link(file, to, failure);
    return failure;
}

// Answers them.
Result<std::vector<std::string>> remove_second_names(const std::string& folder) {
    SIDESTEP_TRY(std::vector<std::string> names, driver::names_in(folder, driver::Hidden::too));
    std::erase_if(names, [&](const std::string& name) {
        std::error_code failure;
        return first_name(name).empty() || !fs::remove(beside(folder, name), failure);
    });
    return names;
}

// The file's first name leads to it again; whatever had that name until now is gone.
Result<void> rename_back(const std::string& folder, const std::string& second) {
    const std::string name = first_name(second);
    std::error_code failure;
    // Two names of one file: rename(2) would leave both.
    if (fs::equivalent(beside(folder, second), beside(folder, name), failure)) return {};
    // Not as a temporary file is called, which somebody may be writing.
    const std::string between = beside(folder, fmt::format(".{}.sidestep-repair", name));
    failure = link(beside(folder, second), between);
    if (!failure) fs::rename(between, fs::weakly_canonical(beside(folder, name), failure), failure);
    if (!failure) return {};
    return Error{ErrorCode::io_error,
                 fmt::format("{} cannot get its name back: {}", second, failure.message()),
                 folder,
                 {}};
}

// The index of the folder leads to second names: what they were before.
Result<std::vector<std::string>> restore(const std::string& folder, const std::string& text,
                                         const ShardIndex& index) {
    std::map<std::string, std::string> names;
    for (const std::string& shard : index.shards)
        if (const std::string name = first_name(shard); !name.empty()) names.emplace(shard, name);
    if (names.empty()) return std::vector<std::string>();
    for (const auto& [second, name] : names) SIDESTEP_CHECK(rename_back(folder, second));
    const std::string path = beside(folder, index_name);
    SIDESTEP_TRY(auto file, driver::ReplacedFile::begin(path));
    const std::string before = renamed(text, names);
    SIDESTEP_CHECK(driver::write_range(file.fd(), 0, before.data(), before.size(), path));
    SIDESTEP_CHECK(file.commit(true));
    return std::vector{fmt::format(
        "{} files of the checkpoint before an interrupted save have their names again", names.size())};
}

}  // namespace

std::string save_lock(const std::string& folder) {
    return beside(folder, ".sidestep-save.lock");
}

std::optional<std::string> EarlierShards::keep(const std::string& folder, const std::string& index,
                                               const std::vector<std::string>& names) {
    const auto earlier = parse_shard_index(index, folder);
    if (!earlier) return interrupted_index();
    std::map<std::string, std::string> seconds;
    for (const std::string& shard : earlier->shards) {
        const std::string path = beside(folder, shard);
        if (std::find(names.begin(), names.end(), shard) == names.end()) continue;
        // One that is missing has none: the new file of that name would be read with the others of the earlier checkpoint.
        const std::string second = second_name(shard);
        if (const auto failure = link(path, beside(folder, second))) {
            base::log(
                base::LogLevel::warn,
                fmt::format("{} can have no second name: {}; a save that is killed while files get their "
                            "names leaves no checkpoint in the folder",
                            path, failure.message()));
            drop();
            return interrupted_index();
        }
        kept_.push_back(beside(folder, second));
        seconds.emplace(shard, second);
    }
    if (seconds.empty()) return std::nullopt;
    return renamed(index, seconds);
}

void EarlierShards::drop() {
    std::error_code ignored;
    for (const std::string& path : kept_) fs::remove(path, ignored);
    kept_.clear();
}

void EarlierShards::drop_all(const std::string& folder) {
    (void)remove_second_names(folder).ok();
}

}  // namespace sidestep::checkpoint

namespace sidestep {

Result<std::vector<std::string>> repair(const std::string& folder) {
    SIDESTEP_TRY(const auto there, driver::file_facts(folder));
    if (!there || there->type != driver::FileType::directory)
        return Error{there ? ErrorCode::invalid_argument : ErrorCode::not_found,
                     fmt::format("there is no folder {}", folder),
                     "repair",
                     {}};
    SIDESTEP_TRY(const auto turn,
                 driver::LockFile::take(checkpoint::save_lock(folder), checkpoint::lock_wait));
    SIDESTEP_TRY(const std::vector<std::string> left,
                 driver::remove_leftovers(folder, checkpoint::lock_wait));
    std::vector<std::string> done;
    for (const std::string& name : left)
        done.push_back(fmt::format("removed {}, which was never finished", name));
    const std::string path = checkpoint::beside(folder, checkpoint::index_name);
    SIDESTEP_TRY(const auto facts, driver::file_facts(path));
    if (!facts) return done;
    SIDESTEP_TRY(const std::string text,
                 checkpoint::read_whole(path, checkpoint::largest_index, "the index"));
    const auto index = checkpoint::parse_shard_index(text, path);
    // It says itself what is to be done.
    if (!index) return index.error();
    SIDESTEP_TRY(const auto restored, checkpoint::restore(folder, text, *index));
    done.insert(done.end(), restored.begin(), restored.end());
    SIDESTEP_TRY(const auto replaced, checkpoint::remove_second_names(folder));
    for (const std::string& name : replaced)
        done.push_back(fmt::format("removed {}, of a checkpoint that was replaced", name));
    return done;
}

}  // namespace sidestep
