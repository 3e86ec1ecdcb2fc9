// Where processes of one user find each other: a folder of sockets, one a name.
#pragma once

#include <optional>
#include <string>

#include <sidestep/result.hpp>
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

    // Listens at socket_of(name); a socket that a dead process left there is replaced. Nothing where somebody
    // alive listens there. One process at a time looks at names and takes them; timed_out where one holds the
    // folder for 5 s.
    Result<std::optional<driver::LocalListener>> take(const std::string& name) const;
    // Removes the socket of a name where nobody listens any more.
    Result<void> tidy(const std::string& name) const;

private:
    explicit Folder(std::string path) : path_(std::move(path)) {}
    std::string path_;
};

// A name is made of letters, digits, '.', '_' and '-', does not begin with '.', and has at most 64
// characters.
Result<void> check_name(const std::string& name);

}  // namespace sidestep::peer
