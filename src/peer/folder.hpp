// Where processes of one user find each other: a folder of sockets, one a name.
#pragma once

#include <string>

#include <sidestep/result.hpp>

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

private:
    explicit Folder(std::string path) : path_(std::move(path)) {}
    std::string path_;
};

// A name is made of letters, digits, '.', '_' and '-', does not begin with '.', and has at most 64
// characters.
Result<void> check_name(const std::string& name);

}  // namespace sidestep::peer
