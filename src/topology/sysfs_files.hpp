// Small readings of /sys below a root. What cannot be read is nullopt or empty, never a failure.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace sidestep::topology {

class SysfsFiles {
public:
    // `root` is put before every path: "" for the machine itself.
    explicit SysfsFiles(std::string root) : root_(std::move(root)) {}

    // The first line of a file, without the blanks around it. At most 4 KiB are read.
    std::optional<std::string> line(const std::string& path) const;
    // The whole of a small file, at most 64 KiB.
    std::optional<std::string> text(const std::string& path) const;
    // A number in a file: decimal, or hexadecimal with 0x.
    std::optional<long> number(const std::string& path) const;
    // The names in a folder, sorted, without "." and "..".
    std::vector<std::string> names(const std::string& folder) const;
    bool exists(const std::string& path) const;
    // The path with all symbolic links followed, without the root; empty where it leads nowhere.
    std::string real_path(const std::string& path) const;

private:
    std::string root_;
};

}  // namespace sidestep::topology
