#include "peer/folder.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include <fmt/format.h>

#include <sidestep/place.hpp>
#include "base/try.hpp"
#include "driver/fd.hpp"
#include "driver/system_error.hpp"

namespace sidestep::peer {
namespace {

constexpr std::size_t longest_name = 64;

std::string default_path() {
    const unsigned user = ::geteuid();
    const std::string run = fmt::format("/run/user/{}", user);
    struct stat status {};
    const bool there = ::stat(run.c_str(), &status) == 0 && S_ISDIR(status.st_mode) && status.st_uid == user;
    return there ? run + "/sidestep" : fmt::format("/tmp/sidestep-{}", user);
}

Error refuse(const std::string& path, std::string why, std::string hint) {
    return Error{ErrorCode::permission_denied, fmt::format("published memory cannot be kept there: {}", why),
                 path, std::move(hint)};
}

}  // namespace

Result<Folder> Folder::open(const std::string& wanted, bool create) {
    const std::string path = wanted.empty() ? default_path() : wanted;
    if (create && ::mkdir(path.c_str(), S_IRWXU) != 0 && errno != EEXIST)
        return driver::system_error(errno, "the folder of published memory cannot be made", path,
                                    "make it, or name another one in SIDESTEP_PEER_FOLDER");
    // A link that somebody else may have put there is followed only where the caller named the folder.
    const int follow = wanted.empty() ? O_NOFOLLOW : 0;
    const driver::Fd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | follow));
    if (!fd) return driver::system_error(errno, "the folder of published memory cannot be opened", path);
    struct stat status {};
    if (::fstat(fd.get(), &status) != 0)
        return driver::system_error(errno, "the folder of published memory cannot be looked at", path);
    if (status.st_uid != ::geteuid())
        return refuse(path,
                      fmt::format("the folder belongs to user {}, not to {}", status.st_uid, ::geteuid()),
                      "name a folder of your own in SIDESTEP_PEER_FOLDER");
    if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0)
        return refuse(path, "others may write to the folder", fmt::format("chmod 700 {}", path));
    return Folder(path);
}

Result<void> check_name(const std::string& name) {
    const auto place = Place::parse(fmt::format("shared:{}", name));
    if (!place) return place.error();
    const char* why = nullptr;
    if (name.front() == '.') why = "begins with '.'";
    if (name.size() > longest_name) why = "is longer than 64 characters";
    if (why == nullptr) return {};
    return Error{ErrorCode::invalid_argument, fmt::format("a name of published memory {}", why), name,
                 "use letters, digits, '.', '_' and '-'"};
}

}  // namespace sidestep::peer
