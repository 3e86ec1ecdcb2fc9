// What a node lets others reach. Nothing that is not named here.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sidestep/place.hpp>
#include <sidestep/result.hpp>
#include <sidestep/units.hpp>

namespace sidestep::wire {

enum class Permission { read, write };

// The list of `serve --allow`, with commas between entries:
//
//   gpu:0, gpu:*            memory of that GPU, of all; allocated on behalf of whoever asks, as much as there is
//   gpu:0=8GiB              at most that much at a time, of all who ask together
//   host, host=8GiB         host memory, likewise
//   file:/data              files below that folder, or that one file, for reading
//   file:/scratch=rw        for writing too
//   shared:kv, shared:*     what processes of this user on this machine published under the name; reading and writing
//
// A comma within a path is written "%2C", a '%' "%25", a '=' "%3D"; any byte but zero may be written so. An entry that
// names a GPU counts before gpu:*, whose bound holds for all other GPUs together.
class Allowances {
public:
    // invalid_argument names the entry and what would be right; not_found where the folder or file is not there: paths
    // are made canonical here, once (realpath). Empty text allows nothing.
    static Result<Allowances> parse(std::string_view text);

    // Whether a path may be opened so; answers the canonical path to open instead. Relative paths are refused. A file that
    // is not there yet may be written where its folder is there and allowed. What leads outside by ".." or by a link is
    // refused like what was never allowed. permission_denied says no more than that the path is not among what the node
    // allows, not whether something is there; not_found only for what would be allowed. Paths that begin neither as an
    // entry is written nor with what that leads to are not even looked at. invalid_argument for what no node takes
    // (relative, a folder's form, too long) and for what is there and allowed but is neither file nor block device.
    //
    // The answer has no links and no dots in it. Whoever opens it follows none on the way (openat2 with
    // RESOLVE_NO_SYMLINKS) and looks at what was opened, since a name may lead elsewhere by then.
    Result<std::string> file(const std::string& path, Permission permission) const;

    // The same of a folder whose names are asked for: one that is allowed, or lies in one. A slash may stand at its end.
    Result<std::string> folder(std::string path) const;

    // Whether published memory may be reached.
    Result<void> shared(const std::string& name) const;

    // Whether memory at a host or gpu place may be allocated, `held` bytes being out already at places of that entry;
    // out_of_memory where the bound would be passed, naming it, permission_denied where the place is not allowed.
    Result<void> memory(const Place& place, Bytes bytes, Bytes held) const;
    // The key under which memory of a place is counted as held: that of the entry that allows it; empty: none does.
    std::string account(const Place& place) const;

    // GPUs that are named one by one.
    std::vector<Place> gpus() const;

    // One line an entry, canonical, for `serve` to print.
    std::vector<std::string> lines() const;

private:
    struct Memory {
        std::string name;  // "gpu:0", "gpu:*", "host"
        std::optional<Bytes> bound;
    };
    struct Path {
        std::string path;     // canonical
        std::string written;  // as the list has it; may lead to `path` by links
        bool folder = false;
        bool writable = false;
    };

    Result<void> add(std::string_view entry);
    Result<void> add_memory(std::string_view entry);
    Result<void> add_path(std::string_view entry);
    Result<void> add_shared(std::string_view entry);
    const Memory* memory_of(const Place& place) const;
    bool begins_as_an_entry(const std::string& path) const;
    bool allows(const std::string& canonical, Permission permission) const;
    std::optional<std::string> without_steps_back(std::string path) const;

    std::vector<Memory> memory_;
    std::vector<Path> paths_;
    std::vector<std::string> shared_;
};

}  // namespace sidestep::wire
