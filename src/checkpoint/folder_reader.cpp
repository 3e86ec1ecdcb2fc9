#include "checkpoint/folder_reader.hpp"

#include <algorithm>
#include <iterator>
#include <set>
#include <string_view>

#include <fmt/format.h>

#include "base/try.hpp"
#include "checkpoint/names.hpp"
#include "checkpoint/part_names.hpp"
#include "checkpoint/shard_index.hpp"
#include "driver/files.hpp"

namespace sidestep::checkpoint {
namespace {

constexpr std::string_view index_ending = ".safetensors.index.json";
constexpr std::string_view variant_middle = ".safetensors.index.";

// Links followed.
Result<bool> is_there(const std::string& path, const FarFilesPtr& far) {
    SIDESTEP_TRY(const auto facts, facts_of(path, far));
    return facts.has_value();
}

std::vector<std::string> with_ending(const std::vector<std::string>& names, std::string_view ending) {
    std::vector<std::string> found;
    std::copy_if(names.begin(), names.end(), std::back_inserter(found),
                 [ending](const std::string& name) { return name.ends_with(ending); });
    return found;
}

bool holds(const std::vector<std::string>& sorted, const std::string& name) {
    return std::binary_search(sorted.begin(), sorted.end(), name);
}

// "X.safetensors" of "X.safetensors.index.json" and of "X.safetensors.index.fp16.json".
std::string single_of(const std::string& index) {
    return index.substr(0, index.rfind(variant_middle) + safetensors_ending.size());
}

// The only index that is called otherwise than usual; empty where there is none, or more than one. That of a
// variant, "X.safetensors.index.fp16.json", does not count beside X.safetensors, which is not a part of it.
std::string other_index(const std::vector<std::string>& names) {
    std::vector<std::string> indexes = with_ending(names, index_ending);
    if (indexes.empty()) {
        for (const std::string& name : with_ending(names, ".json"))
            if (name.find(variant_middle) != std::string::npos && !holds(names, single_of(name)))
                indexes.push_back(name);
    }
    return indexes.size() == 1 ? indexes.front() : std::string();
}

Result<void> check_parts(const std::vector<std::string>& names, const std::string& folder) {
    const std::string absent = absent_parts(names);
    if (absent.empty()) return {};
    return Error{ErrorCode::not_found, fmt::format("files of the model are missing: {}", absent), folder,
                 "copy or download the missing files, or give the path of one file to read it alone"};
}

// One model, in one file or in parts.
Result<void> check_gguf(const std::vector<std::string>& names, const std::string& folder) {
    std::set<std::string> models;
    for (const std::string& name : names) {
        const auto part = parse_part_name(name);
        models.insert(part ? part->model() : name);
    }
    if (models.size() > 1)
        return Error{
            ErrorCode::invalid_argument,
            fmt::format("the folder holds {} GGUF files, {} and others", names.size(), shown(names.front())),
            folder, "give the path of one of them"};
    return check_parts(names, folder);
}

}  // namespace

std::string beside(const std::string& folder, const std::string& name) {
    return folder.ends_with('/') ? folder + name : fmt::format("{}/{}", folder, name);
}

Result<FolderFiles> files_of_folder(const std::string& folder, const FarFilesPtr& far) {
    FolderFiles files;
    SIDESTEP_TRY(const bool has_index, is_there(beside(folder, index_name), far));
    SIDESTEP_TRY(const bool has_single, is_there(beside(folder, single_name), far));
    if (has_index) files.index = beside(folder, index_name);
    if (has_single) (has_index ? files.single : files.paths.emplace_back()) = beside(folder, single_name);
    if (has_index || has_single) return files;
    SIDESTEP_TRY(const auto names, far ? far->names(folder) : driver::names_in(folder));
    if (const std::string index = other_index(names); !index.empty()) {
        files.index = beside(folder, index);
        if (holds(names, single_of(index))) files.single = beside(folder, single_of(index));
        return files;
    }
    std::vector<std::string> found = with_ending(names, safetensors_ending);
    if (!found.empty()) {
        SIDESTEP_CHECK(check_parts(found, folder));
    } else {
        found = with_ending(names, gguf_ending);
        SIDESTEP_CHECK(check_gguf(found, folder));
    }
    if (found.empty())
        return Error{ErrorCode::not_found, "the folder holds no *.safetensors and no *.gguf", folder,
                     "give the path of a file, of an index, or of a folder that holds them"};
    for (const std::string& name : found) files.paths.push_back(beside(folder, name));
    return files;
}

}  // namespace sidestep::checkpoint
