// Files that programs registered, by the handles they hold.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <shared_mutex>
#include <string>
#include <unordered_map>

#include <sidestep/units.hpp>
#include "shims/cufile/failure.hpp"

namespace sidestep::cufile {

// A registered file. Its own descriptor is a description of its own (flags, offset), and stays open as long as somebody uses
// it, whatever the caller does with theirs.
class File {
public:
    File(int descriptor, int own, int access);
    ~File();
    File(const File&) = delete;
    File& operator=(const File&) = delete;

    int descriptor() const { return descriptor_; }  // the caller's; a number, not for use
    int own() const { return own_; }
    // /proc/self/fd/N: by it the engine opens the file, also one without a name.
    const std::string& path() const { return path_; }
    bool can_read() const { return can_read_; }
    bool can_write() const { return can_write_; }
    // The file behind the caller's descriptor is still this one.
    bool is_behind(int descriptor) const;

    // Its size now, of a block device too.
    Refusal size(Bytes& bytes) const;

private:
    const int descriptor_;
    const int own_;
    const bool can_read_;
    const bool can_write_;
    const std::string path_;
    std::uint64_t device_ = 0;
    std::uint64_t inode_ = 0;
};

// Safe to use from several threads.
class Files {
public:
    static Files& get();

    Refusal add(const CUfileDescr_t& description, CUfileHandle_t& handle);
    // Null for what is no handle, or no longer. Whoever has it may go on when it is removed.
    std::shared_ptr<const File> find(CUfileHandle_t handle) const;
    bool remove(CUfileHandle_t handle);
    void clear();

private:
    mutable std::shared_mutex mutex_;
    std::unordered_map<CUfileHandle_t, std::shared_ptr<const File>> files_;
    std::unordered_map<int, CUfileHandle_t> by_descriptor_;
    // Handles are numbers that come once each: one that is gone stays unknown.
    std::uintptr_t next_ = std::uintptr_t{1} << 32;
};

}  // namespace sidestep::cufile
