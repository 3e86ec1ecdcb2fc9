// The files in which Linux shows a machine, read below a root: "" for this machine, or the folder of a
// recorded or made-up one. What cannot be read is nullopt or empty, never a failure.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <sidestep/units.hpp>

namespace sidestep::driver {

// What was asked of the files, so that a record holds exactly that.
struct FileAccesses {
    std::set<std::string> read;      // files whose text was read
    std::set<std::string> listed;    // folders whose names were read
    std::set<std::string> followed;  // paths whose real place, or the target of the link, was asked for
    std::set<std::string> asked;     // paths of which only their being there was asked
};

enum class FileState { there, missing, denied };

class MachineFiles {
public:
    // `root` is put before every path. A recorded root may list in `denied_list` below it, a path a line,
    // what the recording process was not allowed to read.
    explicit MachineFiles(std::string root);

    static constexpr const char* denied_list = "/sidestep/denied";

    const std::string& root() const { return root_; }
    bool live() const { return root_.empty(); }

    // From now on every access is noted in `accesses`, also those of copies made afterwards. Not to be used
    // by several threads at once then.
    void note_accesses(std::shared_ptr<FileAccesses> accesses) { accesses_ = std::move(accesses); }

    // The first line of a file, without the blanks around it, printable. At most 4 KiB are read.
    std::optional<std::string> line(const std::string& path) const;
    // The whole of a file, at most `max` bytes, which may be any.
    std::optional<std::string> text(const std::string& path, std::size_t max = 64 * 1024) const;
    // A number in a file: decimal, or hexadecimal with 0x.
    std::optional<long> number(const std::string& path) const;
    // The names in a folder, sorted, without "." and "..".
    std::vector<std::string> names(const std::string& folder) const;
    bool exists(const std::string& path) const;
    // Whether a path is there and the process may read it.
    FileState state(const std::string& path) const;
    // The path with all symbolic links followed, without the root; empty where it leads nowhere.
    std::string real_path(const std::string& path) const;
    // What a symbolic link says, such as "pid:[4026531836]"; nullopt where there is none.
    std::optional<std::string> link_target(const std::string& path) const;

    // What was asked for and leads out of the record, as a link to /etc/shadow does: such files count as missing. This
    // object's and those of its copies; any thread.
    std::vector<std::string> strays() const;

private:
    struct Strays {
        std::mutex mutex;
        std::set<std::string> paths;
    };
    // Where a path is on this machine; nullopt where it is missing, or strays.
    std::optional<std::string> place_of(const std::string& path) const;

    std::string root_;
    std::string real_root_;  // without links
    std::shared_ptr<Strays> strays_ = std::make_shared<Strays>();
    std::set<std::string> denied_;
    std::shared_ptr<FileAccesses> accesses_;
};

}  // namespace sidestep::driver
