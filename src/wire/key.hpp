// The key by which nodes know each other: 32 random bytes in a file that only its user may read.
#pragma once

#include <cstddef>
#include <string>

#include <sidestep/result.hpp>

namespace sidestep::wire {

constexpr std::size_t key_bytes = 32;

// Where the key lies: `given`, else $XDG_CONFIG_HOME/sidestep/key, else $HOME/.config/sidestep/key. not_found where none
// of them is known. The environment's SIDESTEP_KEY_FILE is the caller's matter.
Result<std::string> key_path(const std::string& given);

// The key of a file: 64 hexadecimal digits, a line's end may follow. permission_denied where others than its owner may
// read or write it, or it belongs to another user (not root); not_found; invalid_argument for other contents, which no
// message shows. Opens no device, no fifo; links are followed. Needs /proc.
Result<std::string> read_key(const std::string& path);

// Makes a key there, mode 0600, and its folder, mode 0700, where they are not there: appears whole or not at all, and a
// file that is there stays. The key that lies there then: of several that make one at the same time, all get the same.
// Nothing is made through a link that leads nowhere (not_found).
Result<std::string> read_or_make_key(const std::string& path);

}  // namespace sidestep::wire
