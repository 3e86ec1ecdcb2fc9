#include "peer/folder.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <thread>

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

// How long another process may hold the folder while it takes a name; it needs microseconds.
constexpr std::chrono::seconds lock_limit{5};
constexpr std::chrono::microseconds lock_pause{200};

// Includes names that no importer has asked for yet.
void remove_all_names(const std::string& folder, const std::string& socket) {
    const std::string id = file_id(socket);
    std::error_code failed;
    for (std::filesystem::directory_iterator at(folder, failed), end; !failed && at != end;
         at.increment(failed))
        if (!id.empty() && file_id(at->path().native()) == id) ::unlink(at->path().c_str());
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

// A socket that is bound but does not listen yet looks like one that a dead process left, and of two processes that
// find such a one the second would remove what the first has put there: hence one at a time.
Result<std::unique_ptr<driver::FolderLock>> Folder::hold() const {
    const auto until = std::chrono::steady_clock::now() + lock_limit;
    for (;;) {
        SIDESTEP_TRY(auto held, driver::FolderLock::try_take(path_));
        if (held) return held;
        if (std::chrono::steady_clock::now() > until)
            return Error{ErrorCode::timed_out, "another process holds the peer folder", path_,
                         "it hangs, or is stopped"};
        std::this_thread::sleep_for(lock_pause);
    }
}

Result<bool> Folder::make_free(const std::string& name) const {
    const std::string path = socket_of(name);
    SIDESTEP_TRY(const driver::SocketPath found, driver::look_at_socket(path));
    if (found != driver::SocketPath::stale) return found == driver::SocketPath::absent;
    remove_all_names(path_, path);
    if (::unlink(path.c_str()) != 0 && errno != ENOENT)
        return driver::system_error(errno, "what a dead process left behind cannot be removed", path);
    return true;
}

Result<std::optional<driver::LocalListener>> Folder::take(const std::string& name) const {
    SIDESTEP_TRY(const auto held, hold());
    SIDESTEP_TRY(const bool is_free, make_free(name));
    if (!is_free) return std::optional<driver::LocalListener>();
    SIDESTEP_TRY(driver::LocalListener listener, driver::LocalListener::bind(socket_of(name)));
    return std::optional(std::move(listener));
}

// A clean-up does not wait for the lock.
Result<void> Folder::tidy(const std::string& name) const {
    SIDESTEP_TRY(const driver::SocketPath found, driver::look_at_socket(socket_of(name)));
    if (found != driver::SocketPath::stale) return {};
    SIDESTEP_TRY(const auto held, driver::FolderLock::try_take(path_));
    if (held) SIDESTEP_CHECK(make_free(name));
    return {};
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

std::string file_id(const std::string& path) {
    struct stat status {};
    if (::lstat(path.c_str(), &status) != 0) return {};
    return fmt::format("{}:{}", status.st_dev, status.st_ino);
}

}  // namespace sidestep::peer
