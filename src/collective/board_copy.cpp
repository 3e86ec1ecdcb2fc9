#include "collective/board_copy.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <vector>

#include "collective/board.hpp"
#include "driver/system_error.hpp"

namespace sidestep::collective {
namespace {

// What `sidestep ps` needs.
constexpr std::size_t shown_bytes = BoardFile::shown_bytes();

std::size_t place_of(unsigned rank) {
    return offsetof(BoardFile, rows) + rank * sizeof(BoardFile::Row);
}

// The lock of a rank is that of the byte with its number.
struct flock range_of(unsigned rank) {
    struct flock range {};
    range.l_type = F_WRLCK;
    range.l_whence = SEEK_SET;
    range.l_start = static_cast<off_t>(rank);
    range.l_len = 1;
    return range;
}

// Word by word, since others write there. A copy that cannot be written is one that shows less.
void write_words(int fd, const BoardFile& board, std::size_t from, std::size_t bytes) {
    const auto* const begin = reinterpret_cast<const char*>(&board) + from;
    const auto* const words = reinterpret_cast<const BoardFile::Number*>(begin);
    std::vector<std::uint64_t> values(bytes / sizeof(*words));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = words[i].load(std::memory_order_relaxed);
    (void)!::pwrite(fd, values.data(), bytes, static_cast<off_t>(from));
}

}  // namespace

Result<BoardCopy> BoardCopy::create(const std::string& path) {
    ::unlink(path.c_str());
    driver::Fd fd(
        ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR));
    if (!fd) return driver::system_error(errno, "a file cannot be made", path);
    if (const int number = ::posix_fallocate(fd.get(), 0, shown_bytes); number != 0) {
        ::unlink(path.c_str());
        return driver::system_error(number, "a file cannot be made", path);
    }
    return BoardCopy(std::move(fd), path);
}

BoardCopy BoardCopy::open(const std::string& path) {
    driver::Fd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    struct stat status {};
    if (fd && (::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode))) fd = driver::Fd();
    return {std::move(fd), path};
}

bool BoardCopy::lock(unsigned rank) const {
    struct flock range = range_of(rank);
    return fd_ && ::fcntl(fd_.get(), F_OFD_SETLK, &range) == 0;
}

void BoardCopy::write(const BoardFile& board, unsigned rank) const {
    if (!fd_) return;
    write_words(fd_.get(), board, place_of(rank), sizeof(BoardFile::Row));
    write_words(fd_.get(), board, 0, offsetof(BoardFile, rows));  // last: it says that there is a board
}

void BoardCopy::write_left(unsigned rank) const {
    static_assert(offsetof(BoardFile::Row, state) == 0);
    const std::uint64_t left = BoardFile::left;
    if (fd_) (void)!::pwrite(fd_.get(), &left, sizeof(left), static_cast<off_t>(place_of(rank)));
}

void BoardCopy::remove() const {
    struct stat own {};
    struct stat there {};
    if (fd_ && ::fstat(fd_.get(), &own) == 0 && ::lstat(path_.c_str(), &there) == 0 &&
        own.st_ino == there.st_ino && own.st_dev == there.st_dev)
        ::unlink(path_.c_str());
}

bool is_locked(int copy, unsigned rank) {
    struct flock range = range_of(rank);
    return ::fcntl(copy, F_OFD_GETLK, &range) != 0 || range.l_type != F_UNLCK;
}

}  // namespace sidestep::collective
