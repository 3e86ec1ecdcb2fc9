// The files of the checkpoint that a save replaces.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <sidestep/result.hpp>

namespace sidestep::checkpoint {

// Keeps them under second names, hidden ones, until the index leads to the new files: then it alone decides which checkpoint
// there is, at every moment.
class EarlierShards {
public:
    // `index` is the text of the folder's index, `names` are those of the new files. Files that both name get their second
    // name. Answers what is to stand in the index's place while the new files get theirs: the same index with the second
    // names; nothing where it may stay as it is; interrupted_index() where it is none, or the file system has no
    // second names.
    std::optional<std::string> keep(const std::string& folder, const std::string& index,
                                    const std::vector<std::string>& names);
    // Removes what keep() made, where the index is again what it was.
    void drop();
    // Removes all second names in the folder, those that killed saves left too, once the index leads to none of them.
    static void drop_all(const std::string& folder);

private:
    std::vector<std::string> kept_;  // paths
};

// Held while files get their names.
std::string save_lock(const std::string& folder);

}  // namespace sidestep::checkpoint
