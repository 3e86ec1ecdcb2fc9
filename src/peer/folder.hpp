// Where processes of one user find each other: a folder of sockets. A socket may have several names, each a hard link.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include <sidestep/result.hpp>
#include "driver/folder_lock.hpp"
#include "driver/local_socket.hpp"

namespace sidestep::peer {

class Folder {
public:
    // `wanted`, or if that is empty /run/user/UID/sidestep, or where there is no such user folder
    // /tmp/sidestep-UID. With `create` it is made (mode 0700) where it is not there, its parent is not.
    // permission_denied where it belongs to another user, or others may write to it.
    static Result<Folder> open(const std::string& wanted, bool create);

    const std::string& path() const { return path_; }
    // The socket of a name.
    std::string socket_of(const std::string& name) const { return path_ + "/" + name; }

    // One process at a time looks at names and takes them, as long as it holds this. timed_out where another one does
    // so for 5 s.
    Result<std::unique_ptr<driver::FolderLock>> hold() const;
    // Whether the folder's holder can take the name: no where a living process listens. The socket of a
    // process that has ended is removed, with all its names.
    Result<bool> make_free(const std::string& name) const;

    // Listens at socket_of(name); nothing where make_free() says no.
    Result<std::optional<driver::LocalListener>> take(const std::string& name) const;
    // Removes the socket of a process that has ended, unless another process holds the folder just now.
    Result<void> tidy(const std::string& name) const;

private:
    explicit Folder(std::string path) : path_(std::move(path)) {}
    std::string path_;
};

// A name is made of letters, digits, '.', '_' and '-', does not begin with '.', and has at most 64
// characters.
Result<void> check_name(const std::string& name);

// Tells one file from any other, whichever of its names is asked; links are not followed. Empty where nothing is there.
std::string file_id(const std::string& path);

}  // namespace sidestep::peer
