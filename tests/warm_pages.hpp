// Files of which the page cache holds a part.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <string>

#include <gtest/gtest.h>

#include <sidestep/units.hpp>

namespace sidestep::test {

// Brings just that range into the page cache, and locks it there: a kernel that reclaims memory before it is
// short of it (DAMON) takes pages that nobody has used for a moment.
class WarmPages {
public:
    WarmPages(const std::string& path, Bytes offset, Bytes size) : size_(size) {
        const int file = ::open(path.c_str(), O_RDONLY);
        ::posix_fadvise(file, 0, 0, POSIX_FADV_RANDOM);
        std::string bytes(size, '\0');
        EXPECT_EQ(::pread(file, bytes.data(), size, static_cast<off_t>(offset)), static_cast<ssize_t>(size));
        const Bytes before = offset % 4096;
        size_ += before;
        map_ = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file, static_cast<off_t>(offset - before));
        ::close(file);
        if (map_ == MAP_FAILED) return;
        ::madvise(map_, size_, MADV_RANDOM);  // nothing around it is to come along
        // A wish: there is a limit for users. By number, since sanitizers make mlock() do nothing.
        ::syscall(SYS_mlock, map_, size_);
    }
    ~WarmPages() {
        if (map_ != MAP_FAILED) ::munmap(map_, size_);
    }
    WarmPages(const WarmPages&) = delete;
    WarmPages& operator=(const WarmPages&) = delete;

private:
    Bytes size_;
    void* map_ = MAP_FAILED;
};

}  // namespace sidestep::test
