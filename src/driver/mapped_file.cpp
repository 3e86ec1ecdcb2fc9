#include "driver/mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/try.hpp"
#include "driver/system_error.hpp"

namespace sidestep::driver {

Result<MappedFile> MappedFile::create(const std::string& path, Bytes bytes) {
    ::unlink(path.c_str());
    Fd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR));
    if (!fd) return system_error(errno, "a file cannot be made", path);
    if (const int number = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes)); number != 0) {
        ::unlink(path.c_str());
        return system_error(number, "a file cannot be made", path);
    }
    auto mapped = adopt(std::move(fd), bytes);
    if (!mapped) ::unlink(path.c_str());
    return mapped;
}

Result<MappedFile> MappedFile::adopt(Fd fd, Bytes bytes) {
    struct stat status {};
    if (::fstat(fd.get(), &status) != 0) return system_error(errno, "a file cannot be looked at", "fstat");
    if (!S_ISREG(status.st_mode) || static_cast<Bytes>(status.st_size) != bytes)
        return Error{
            ErrorCode::io_error, "a file of another process has another size than promised", "mmap", {}};
    void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    if (address == MAP_FAILED) return system_error(errno, "a file cannot be mapped", "mmap");
    return MappedFile(std::move(fd), address, bytes);
}

MappedFile::~MappedFile() {
    if (address_ != nullptr) ::munmap(address_, bytes_);
}

void MappedFile::remove(const std::string& path) const {
    struct stat own {};
    struct stat there {};
    if (::fstat(fd_.get(), &own) == 0 && ::lstat(path.c_str(), &there) == 0 && own.st_ino == there.st_ino &&
        own.st_dev == there.st_dev)
        ::unlink(path.c_str());
}

}  // namespace sidestep::driver
