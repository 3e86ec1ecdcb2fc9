// File systems that a test mounts for itself, as root.
#pragma once

#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <fmt/format.h>

namespace sidestep::test {

// "ext4", "xfs" and "btrfs" lie on a loop device over a file of 400 MiB, which takes little room; "tmpfs"; "bindfs" is a view of another folder, by FUSE. Goes with
// everything in it.
class Mounted {
public:
    explicit Mounted(const std::string& kind) {
        std::string name = (std::filesystem::temp_directory_path() / "sidestep-mounted-XXXXXX").string();
        if (::mkdtemp(name.data()) == nullptr) {
            why_not_ = "there is no room for a folder";
            return;
        }
        top_ = name;
        std::filesystem::create_directory(path());
        if (::geteuid() != 0)
            why_not_ = "only root mounts file systems";
        else if (kind == "tmpfs")
            mounted_ = runs("mount -t tmpfs sidestep-test " + path());
        else if (kind == "bindfs")
            mounted_ = runs(fmt::format("mkdir {0}/below && bindfs {0}/below {1}", top_, path()));
        else
            mounted_ =
                runs(fmt::format("truncate -s 400M {0}/image && mkfs.{1} -q {2} {0}/image && "
                                 "mount -t {1} -o loop {0}/image {3}",
                                 top_, kind, kind == "ext4" ? "-F" : "-f", path()));
    }
    ~Mounted() {
        if (mounted_) (void)runs("umount " + path());
        std::error_code ignored;
        if (!top_.empty()) std::filesystem::remove_all(top_, ignored);
    }
    Mounted(const Mounted&) = delete;
    Mounted& operator=(const Mounted&) = delete;

    // Empty where it is mounted.
    const std::string& why_not() const { return why_not_; }
    std::string path() const { return top_ + "/mounted"; }

    // The folder in /sys that tells of its block device.
    std::string block_device() const {
        struct stat status {};
        ::stat(path().c_str(), &status);
        return fmt::format("/sys/dev/block/{}:{}", major(status.st_dev), minor(status.st_dev));
    }

private:
    bool runs(const std::string& command) {
        const std::string words = top_ + "/words";
        if (std::system(fmt::format("({}) >{} 2>&1", command, words).c_str()) == 0) return true;
        std::ifstream file(words);
        why_not_ =
            fmt::format("`{}`: {}", command,
                        std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()));
        return false;
    }

    std::string top_;
    std::string why_not_;
    bool mounted_ = false;
};

}  // namespace sidestep::test
