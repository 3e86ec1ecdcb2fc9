// Questions about paths, and files opened by them. Thin: what to do with the answers is decided by the
// file backend.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <sidestep/result.hpp>
#include <sidestep/units.hpp>
#include "driver/fd.hpp"

namespace sidestep::driver {

enum class FileType { regular, block_device, directory, character_device, fifo, socket };

// "regular file", "block device", "directory", ...
const char* to_string(FileType type);

// What a path leads to, links followed.
struct FileFacts {
    FileType type = FileType::regular;
    Bytes size = 0;              // of a regular file or block device
    std::uint64_t identity = 0;  // equal for two paths to one file or device, never 0
    std::uint64_t version = 0;   // base::file_version() of its size and times
    unsigned mode = 0;           // permission bits
    unsigned owner = 0;
    unsigned group = 0;
};

// Nothing where the path leads nowhere (also through a link that dangles). Fails where a folder on the
// way cannot be searched.
Result<std::optional<FileFacts>> file_facts(const std::string& path);

// The same of an open file.
Result<FileFacts> file_facts(const Fd& fd, const std::string& path);

// open(2) with O_CLOEXEC, repeated when interrupted.
Result<Fd> open_file(const std::string& path, int flags, unsigned mode = 0);

// Whether what was opened is the file that its path was looked at as: FileFacts::identity, and its version unless
// that is 0. ErrorCode::io_error where another file has taken its name since, or it was written to. An identity
// of 0: nobody looked.
Result<void> check_opened(const Fd& fd, const std::string& path, std::uint64_t identity,
                          std::uint64_t version);

// open_file() for reading, but without waiting on a pipe that has no writer.
Result<Fd> open_to_read(const std::string& path);

// The file behind `fd` opened once more with O_DIRECT, for what `fd` was opened for. Goes through
// /proc/self/fd, so that it also works for a file without a name.
Result<Fd> open_direct(const Fd& fd, const std::string& path);

// Whether the file's bytes live in memory (tmpfs, ramfs, hugetlbfs), so that there is nothing to go around.
bool lives_in_memory(const Fd& fd);
// The same of one that may not be there yet, by its folder.
bool would_live_in_memory(const std::string& path);

// What O_DIRECT wants of a file, by STATX_DIOALIGN.
struct DirectAlignment {
    Bytes offset = 0;  // offsets and sizes are multiples of it; 0: the file takes no O_DIRECT
    Bytes memory = 0;  // addresses too
};

// Nothing where the kernel (before 6.1) or the file system does not say.
std::optional<DirectAlignment> direct_alignment(const Fd& fd);

// Follows links at the end of `path`, at most 40 of them, also to a name that does not exist yet.
Result<std::string> follow_links(const std::string& path);

// The folder a path's last name lies in ("." for a bare name), and that name.
struct SplitPath {
    std::string folder;
    std::string name;
};
SplitPath split_path(const std::string& path);

// The names in a folder, sorted. Hidden ones begin with a dot.
enum class Hidden { left_out, too };
Result<std::vector<std::string>> names_in(const std::string& folder, Hidden hidden = Hidden::left_out);

// Whether the process may write the file at `path`, by its effective user.
bool may_write(const std::string& path);

// Where a file has bytes between two offsets, in order. Holes of less than 64 KiB count as bytes: they are not worth a
// request of their own. Nothing where it has no holes, ends before, or the file system does not tell.
struct FileExtent {
    Bytes begin = 0;
    Bytes end = 0;
};
std::optional<std::vector<FileExtent>> extents_of(const Fd& fd, Bytes begin, Bytes end);

// Lengthens or cuts a file. Fails with no_space where RLIMIT_FSIZE would end the process with a signal.
Result<void> set_size(const Fd& fd, Bytes bytes, const std::string& path);

// Takes disk blocks for a range, so that a full disk is found out before the first byte. With
// `keep_size` the file's size stays. File systems that cannot do it are passed over: the writes find
// out. Also fails with no_space where RLIMIT_FSIZE would end the process with a signal.
Result<void> reserve_space(const Fd& fd, Bytes offset, Bytes bytes, bool keep_size, const std::string& path);
// What such a range has beyond the end of the file, where the file system can do it. ext4 keeps it until the file is
// truncated; doing that here could take away what another process has appended meanwhile.
void give_back_space(const Fd& fd, Bytes offset, Bytes bytes);

// The same for an empty file that lives_in_memory() and gets that many bytes, without taking its pages:
// setting them aside goes one page after the other (8 GiB in pages of 4 KiB take two seconds), while those
// who write can take them side by side. Others may take the room meanwhile: then the writes find out. So they
// do where the file system refuses such a length.
Result<void> lengthen_in_memory(const Fd& fd, Bytes bytes, const std::string& path);

// fsync(2).
Result<void> flush_file(const Fd& fd, const std::string& path);

// ErrorCode::end_of_file for a read of [begin, begin + asked) that found none of it, with the byte at which the
// file ends now: before `begin`, where more was cut off. `what` as people know the file.
Error ended_early(const Fd& fd, const std::string& path, Bytes begin, Bytes asked, const std::string& what);

// Reads all of a range, through the page cache. ErrorCode::end_of_file where the file ends before.
Result<void> read_range(const Fd& fd, Bytes offset, void* target, Bytes size, const std::string& path);

// Writes all of a range, through the page cache. ErrorCode::no_space where the device is full, and where RLIMIT_FSIZE would
// end the process with a signal.
Result<void> write_range(const Fd& fd, Bytes offset, const void* source, Bytes size, const std::string& path);

// Whether the byte at offset 0 can be read though the size is 0, as in /proc.
bool has_hidden_content(const Fd& fd);

// The first line of a small text file such as those of /sys, without its newline; nothing if it cannot
// be read. `read_text` gives the whole of it, up to 64 KiB.
std::optional<std::string> read_line(const std::string& path);
std::optional<std::string> read_text(const std::string& path);

}  // namespace sidestep::driver
