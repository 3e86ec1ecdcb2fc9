#include "tests/cufile/world.hpp"

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

namespace sidestep::cufile_test {

std::vector<unsigned char> pattern(std::size_t bytes, unsigned seed) {
    std::vector<unsigned char> made(bytes);
    unsigned x = seed * 2654435761U + 12345U;
    for (unsigned char& byte : made) {
        x = x * 1664525U + 1013904223U;
        byte = static_cast<unsigned char>(x >> 24U);
    }
    return made;
}

TempFile::TempFile(const std::vector<unsigned char>& content) : path_("/tmp/sidestep-cufile-XXXXXX") {
    const Descriptor made(::mkstemp(path_.data()));
    EXPECT_GE(made, 0);
    std::ofstream file(path_, std::ios::binary);
    file.write(reinterpret_cast<const char*>(content.data()), static_cast<std::streamsize>(content.size()));
}

TempFile::~TempFile() {
    ::unlink(path_.c_str());
}

std::vector<unsigned char> TempFile::content() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

Descriptor::~Descriptor() {
    if (number_ >= 0) ::close(number_);
}

CUfileDescr_t description(int descriptor) {
    CUfileDescr_t made{};
    made.type = CU_FILE_HANDLE_TYPE_OPAQUE_FD;
    made.handle.fd = descriptor;
    return made;
}

Handle::Handle(int descriptor) {
    CUfileDescr_t described = description(descriptor);
    EXPECT_CUFILE(cuFileHandleRegister(&handle_, &described), CU_FILE_SUCCESS);
}

GpuMemory::GpuMemory(int gpu, std::size_t bytes) : memory_(sidestepCufileAllocate(gpu, bytes)) {
    EXPECT_NE(memory_, nullptr) << sidestepCufileLastError();
}

}  // namespace sidestep::cufile_test
