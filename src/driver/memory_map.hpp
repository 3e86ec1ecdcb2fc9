// Pages of anonymous memory that return themselves.
#pragma once

#include <utility>
#include <vector>

#include <sidestep/result.hpp>
#include <sidestep/units.hpp>

namespace sidestep::driver {

// What stands behind the pages of a map. Of `huge_wished` the kernel makes as many huge as it finds:
// huge_bytes() counts them.
enum class PageKind { ordinary, huge_wished, huge };

class MemoryMap {
public:
    // `bytes` bytes (at least one page) of zeroed memory that no page stands behind yet. From 2 MiB on it
    // is aligned to 2 MiB and asks for huge pages. With `numa_node` >= 0 its pages come from that node
    // only; the caller has checked that the node is there. Not counted against the kernel's
    // overcommit limit: the caller looks at what is free (memory_limits.hpp).
    static Result<MemoryMap> anonymous(Bytes bytes, int numa_node = -1);

    // The same with a page behind every byte at once, which makes pinning quick: from 2 MiB on huge pages
    // that the system has set aside, where enough are free, else as anonymous(). Zeroes with up to `threads`
    // threads; without a node pages come from where these threads run. Kernels before 5.14 leave the pages to
    // whoever touches them first.
    static Result<MemoryMap> populated(Bytes bytes, int numa_node, int threads);

    MemoryMap() = default;
    MemoryMap(MemoryMap&& other) noexcept
        : address_(std::exchange(other.address_, nullptr)),
          length_(std::exchange(other.length_, 0)),
          pages_(other.pages_) {}
    MemoryMap& operator=(MemoryMap&& other) noexcept {
        std::swap(address_, other.address_);
        std::swap(length_, other.length_);
        std::swap(pages_, other.pages_);
        return *this;
    }
    ~MemoryMap();

    void* address() const { return address_; }
    // Whole pages, so it may be more than requested.
    Bytes length() const { return length_; }
    PageKind pages() const { return pages_; }

private:
    void* address_ = nullptr;
    Bytes length_ = 0;
    PageKind pages_ = PageKind::ordinary;
};

Bytes page_size();

// Puts pages behind a mapped range so that it can be written; its ends may lie within a page. 0, or the errno
// where touching the range would end in a signal. MADV_POPULATE_WRITE of Linux 5.14: EINVAL before that.
int populate(void* begin, Bytes length);

// Of each page of a range that begins with one: whether something stands behind it. Where the kernel does not tell: yes.
std::vector<bool> present_pages(const void* begin, Bytes length);

// How much of a range of this process lies on huge pages, by /proc/self/smaps: for tests and the log, since
// the kernel takes milliseconds to write that. Neighbours that the kernel counts together with the range may
// raise it, up to `bytes`.
Bytes huge_bytes(const void* address, Bytes bytes);

}  // namespace sidestep::driver
