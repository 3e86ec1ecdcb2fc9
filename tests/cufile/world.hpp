// Files, memory of every kind, and handles that go by themselves.
#pragma once

#include <fcntl.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "shims/cufile/abi.h"

namespace sidestep::cufile_test {

#define EXPECT_CUFILE(call, code) EXPECT_EQ((call).err, (code)) << sidestepCufileLastError()
#define ASSERT_CUFILE(call, code) ASSERT_EQ((call).err, (code)) << sidestepCufileLastError()

// Bytes that differ from place to place, and by `seed`.
std::vector<unsigned char> pattern(std::size_t bytes, unsigned seed);

// A file in the temporary folder with these bytes; removed at the end.
class TempFile {
public:
    explicit TempFile(const std::vector<unsigned char>& content = {});
    ~TempFile();
    TempFile(const TempFile&) = delete;
    TempFile& operator=(const TempFile&) = delete;

    const std::string& path() const { return path_; }
    std::vector<unsigned char> content() const;

private:
    std::string path_;
};

// An open descriptor.
class Descriptor {
public:
    Descriptor(const std::string& path, int flags) : number_(::open(path.c_str(), flags, 0600)) {}
    explicit Descriptor(int number) : number_(number) {}
    ~Descriptor();
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    operator int() const { return number_; }

private:
    int number_;
};

CUfileDescr_t description(int descriptor);

// A registered file.
class Handle {
public:
    explicit Handle(int descriptor);
    ~Handle() { cuFileHandleDeregister(handle_); }
    Handle(const Handle&) = delete;
    Handle& operator=(const Handle&) = delete;
    operator CUfileHandle_t() const { return handle_; }

private:
    CUfileHandle_t handle_ = nullptr;
};

// Memory of an emulated GPU, which this process can look at.
class GpuMemory {
public:
    GpuMemory(int gpu, std::size_t bytes);
    ~GpuMemory() { sidestepCufileFree(memory_); }
    GpuMemory(const GpuMemory&) = delete;
    GpuMemory& operator=(const GpuMemory&) = delete;
    unsigned char* get() const { return static_cast<unsigned char*>(memory_); }

private:
    void* memory_;
};

}  // namespace sidestep::cufile_test
