// Bytes at a place. A Buffer refers; an Allocation owns.
#pragma once

#include <limits>
#include <string>

#include <sidestep/api.h>
#include <sidestep/place.hpp>
#include <sidestep/units.hpp>

namespace sidestep {

// A Buffer is a small value. Its maker keeps the memory or file alive until every transfer that uses it
// has ended; the library never frees it.
class SIDESTEP_API Buffer {
public:
    // As the size of a file buffer: "as much as there is" for a source, "as much as comes" for a target.
    static constexpr Bytes whole = std::numeric_limits<Bytes>::max();

    Buffer() = default;

    // `bytes` bytes of host memory, pageable or pinned. The const form can only be a source.
    static Buffer host(void* address, Bytes bytes);
    static Buffer host(const void* address, Bytes bytes);

    // `bytes` bytes of GPU memory at an address of that GPU (a CUdeviceptr, or what Allocation gave).
    static Buffer gpu(int index, void* address, Bytes bytes);
    static Buffer gpu(int index, const void* address, Bytes bytes);

    // The same for a place that is not known until run time; `place` is a host or gpu place.
    static Buffer memory(Place place, void* address, Bytes bytes);

    // A whole file. As a target it is written under another name and renamed over `path` when every
    // byte has arrived: a failed copy leaves the old file, or none.
    static Buffer file(std::string path);

    // `bytes` bytes of a file or block device from `offset` on. As a target they are written in place:
    // the file must exist, and a failed copy leaves the range partly written.
    static Buffer file(std::string path, Bytes offset, Bytes bytes);

    // Memory that a process of this machine published under a name (Context::publish), found when a copy
    // starts: all of it, or `bytes` bytes from `offset` on. The copy keeps it mapped.
    static Buffer shared(std::string name);
    static Buffer shared(std::string name, Bytes offset, Bytes bytes);

    const Place& place() const { return place_; }
    // The first byte's address; null for a file, and for published memory.
    void* address() const { return address_; }
    // The first byte's offset in the file or the published memory; 0 for memory with an address.
    Bytes offset() const { return offset_; }
    // Size in bytes, or `whole`.
    Bytes size() const { return size_; }
    // True where the memory was given as const: it cannot be a target.
    bool read_only() const { return read_only_; }
    // True for a file buffer without a range.
    bool whole_file() const { return place_.is_file() && size_ == whole; }

    // The same on the machine called `node`; an empty name means this machine. An address is one of that machine.
    Buffer on(std::string node) const;

    // The `bytes` bytes that start `from` bytes into this buffer. The caller keeps within size().
    Buffer slice(Bytes from, Bytes bytes) const;

    // "gpu:0 0x7f.. 4 MiB", "file:/data/x@4096+1 MiB".
    std::string to_string() const;

private:
    Place place_;
    void* address_ = nullptr;
    Bytes offset_ = 0;
    Bytes size_ = 0;
    bool read_only_ = false;
};

}  // namespace sidestep
