#include "config.hpp"

#include <fmt/format.h>
#include <sidestep/buffer.hpp>
#include <sidestep/version.hpp>

namespace sidestep {

Buffer Buffer::memory(Place place, void* address, Bytes bytes) {
    Buffer buffer;
    buffer.place_ = std::move(place);
    buffer.address_ = address;
    buffer.size_ = bytes;
    return buffer;
}

Buffer Buffer::host(void* address, Bytes bytes) {
    return memory(Place::host(), address, bytes);
}

Buffer Buffer::host(const void* address, Bytes bytes) {
    Buffer buffer = host(const_cast<void*>(address), bytes);
    buffer.read_only_ = true;
    return buffer;
}

Buffer Buffer::gpu(int index, void* address, Bytes bytes) {
    return memory(Place::gpu(index), address, bytes);
}

Buffer Buffer::gpu(int index, const void* address, Bytes bytes) {
    Buffer buffer = gpu(index, const_cast<void*>(address), bytes);
    buffer.read_only_ = true;
    return buffer;
}

Buffer Buffer::on(std::string node) const {
    Buffer buffer = *this;
    buffer.place_ = place_.on(std::move(node));
    return buffer;
}

Buffer Buffer::file(std::string path) {
    return file(std::move(path), 0, whole);
}

Buffer Buffer::file(std::string path, Bytes offset, Bytes bytes) {
    Buffer buffer;
    buffer.place_ = Place::file(std::move(path));
    buffer.offset_ = offset;
    buffer.size_ = bytes;
    return buffer;
}

Buffer Buffer::shared(std::string name) {
    return shared(std::move(name), 0, whole);
}

Buffer Buffer::shared(std::string name, Bytes offset, Bytes bytes) {
    Buffer buffer;
    buffer.place_ = Place::shared(std::move(name));
    buffer.offset_ = offset;
    buffer.size_ = bytes;
    return buffer;
}

Buffer Buffer::slice(Bytes from, Bytes bytes) const {
    Buffer part = *this;
    if (place_.is_file() || place_.is_shared())
        part.offset_ += from;
    else
        part.address_ = static_cast<char*>(address_) + from;
    part.size_ = bytes;
    return part;
}

std::string Buffer::to_string() const {
    if (place_.is_host() || place_.is_gpu() || place_.is_p2pmem())
        return fmt::format("{} {} {}", place_.to_string(), address_, format_bytes(size_));
    if (size_ == whole && offset_ == 0) return place_.to_string();
    return fmt::format("{}@{}+{}", place_.to_string(), offset_, size_ == whole ? "end" : format_bytes(size_));
}

const char* version() {
    return SIDESTEP_VERSION;
}

}  // namespace sidestep
