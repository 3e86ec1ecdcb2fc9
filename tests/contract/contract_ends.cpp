#include "contract_ends.hpp"

#include <cstdlib>
#include <cstring>
#include <fstream>

namespace sidestep::contract {

Content pattern(Bytes size, std::uint64_t seed) {
    Content content(size);
    std::uint64_t state = seed * 0x9E3779B97F4A7C15ull + 1;
    for (Bytes at = 0; at < size; at += sizeof state) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        std::memcpy(content.data() + at, &state, std::min<Bytes>(sizeof state, size - at));
    }
    return content;
}

TemporaryFolder::TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "sidestep-contract-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) ADD_FAILURE() << "cannot make the folder " << name;
    path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
}

TestBuffer::TestBuffer(const BackendUnderTest& under_test, backend::Backend& backend, const End& end,
                       Bytes size)
    : under_test_(under_test) {
    if (end.place.is_file()) {
        folder_.emplace();
        const std::string path = folder_->file("bytes");
        std::ofstream(path, std::ios::binary).close();
        std::filesystem::resize_file(path, size);
        buffer_ = Buffer::file(path, 0, size);
    } else if (backend::Allocator* const allocator = backend.allocator();
               allocator != nullptr && allocator->allocates(end.place.kind()).has(end.memory)) {
        auto allocation = allocator->allocate(end.place, size, end.memory);
        if (!allocation) {
            ADD_FAILURE() << allocation.error().to_string();
            return;
        }
        allocation_ = std::move(*allocation);
        buffer_ = allocation_.buffer();
    } else {
        own_.resize(size);
        buffer_ = Buffer::host(own_.data(), size);
    }
}

void TestBuffer::write(const Content& content) {
    if (folder_) {
        std::fstream file(buffer_.place().path(), std::ios::binary | std::ios::in | std::ios::out);
        file.write(reinterpret_cast<const char*>(content.data()),
                   static_cast<std::streamsize>(content.size()));
    } else if (buffer_.place().is_gpu() && under_test_.poke_gpu) {
        under_test_.poke_gpu(buffer_.address(), content.data(), content.size());
    } else {
        std::memcpy(buffer_.address(), content.data(), content.size());
    }
}

Content TestBuffer::read() const {
    Content content(buffer_.size());
    if (folder_) {
        std::ifstream file(buffer_.place().path(), std::ios::binary);
        file.read(reinterpret_cast<char*>(content.data()), static_cast<std::streamsize>(content.size()));
    } else if (buffer_.place().is_gpu() && under_test_.peek_gpu) {
        under_test_.peek_gpu(content.data(), buffer_.address(), content.size());
    } else {
        std::memcpy(content.data(), buffer_.address(), content.size());
    }
    return content;
}

bool fits(const backend::Capability& capability, const End& from, const End& to, const Topology& topology) {
    if (capability.from != from.place.kind() || capability.to != to.place.kind()) return false;
    if (!capability.from_memory.has(from.memory) || !capability.to_memory.has(to.memory)) return false;
    const bool same = from.place.index() == to.place.index();
    if (capability.reach == backend::Reach::same_gpu) return same;
    if (capability.reach == backend::Reach::peer_access) {
        return !same && topology.peer_access(from.place.index(), to.place.index()).allowed;
    }
    return true;
}

std::string words(const backend::Capability& capability, const End& from, const End& to) {
    return capability.engine + " " + from.place.to_string() + " (" + std::string(to_string(from.memory)) +
           ") -> " + to.place.to_string() + " (" + std::string(to_string(to.memory)) + ")";
}

}  // namespace sidestep::contract
