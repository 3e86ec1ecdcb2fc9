// Files of which the page cache holds a part.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

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

// Takes a file out of the page cache. A page stays that the kernel looks at just then (reclaim, DAMON), for a
// moment; false where some stay for seconds.
inline bool drop_pages(const std::string& path) {
    const int file = ::open(path.c_str(), O_RDWR);
    if (file < 0) return false;
    ::fsync(file);
    const auto size = static_cast<std::size_t>(::lseek(file, 0, SEEK_END));
    void* const map = ::mmap(nullptr, std::max<std::size_t>(size, 1), PROT_READ, MAP_SHARED, file, 0);
    std::vector<unsigned char> held(size / 4096 + 1);
    bool gone = false;
    for (int tries = 0; map != MAP_FAILED && !gone && tries < 400; ++tries) {
        if (tries > 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
        std::fill(held.begin(), held.end(), 0);
        gone = ::mincore(map, size, held.data()) == 0 &&
               std::none_of(held.begin(), held.end(), [](unsigned char page) { return (page & 1) != 0; });
    }
    if (map != MAP_FAILED) ::munmap(map, std::max<std::size_t>(size, 1));
    ::close(file);
    return gone;
}

}  // namespace sidestep::test
