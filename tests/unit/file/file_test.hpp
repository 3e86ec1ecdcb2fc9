// What the tests of the file backend share.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <set>
#include <thread>

#include "backends/file/file_backend.hpp"
#include "driver/fd.hpp"
#include "tests/contents.hpp"
#include "tests/started_piece.hpp"

namespace sidestep::backends::file {

// A folder that anybody may look into, and that goes with everything in it.
class Folder {
public:
    explicit Folder(const std::filesystem::path& parent = std::filesystem::temp_directory_path()) {
        std::string name = (parent / "sidestep-file-XXXXXX").string();
        EXPECT_NE(::mkdtemp(name.data()), nullptr);
        path_ = name;
        ::chmod(path_.c_str(), 0755);
    }
    ~Folder() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;

    const std::string& path() const { return path_; }
    std::string operator/(const std::string& name) const { return path_ + "/" + name; }

    // Names in the folder, hidden ones too.
    std::set<std::string> names() const {
        std::set<std::string> names;
        for (const auto& entry : std::filesystem::directory_iterator(path_))
            names.insert(entry.path().filename());
        return names;
    }

private:
    std::string path_;
};

using test::get;
using test::put;
using test::text_of;

inline bool says(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

// The user "nobody" as long as it lives, where the process may change.
class Unprivileged {
public:
    Unprivileged() : was_root_(::geteuid() == 0) { EXPECT_TRUE(!was_root_ || ::seteuid(65534) == 0); }
    ~Unprivileged() { EXPECT_TRUE(!was_root_ || ::seteuid(0) == 0); }
    Unprivileged(const Unprivileged&) = delete;
    Unprivileged& operator=(const Unprivileged&) = delete;

private:
    bool was_root_;
};

// A backend and the steps of a copy with it.
class FileTest : public testing::Test {
protected:
    void open(std::unique_ptr<backend::Backend> made) {
        backend_ = std::move(made);
        Topology::Parts parts;
        parts.name = "one-cpu";
        parts.devices.push_back({DeviceKind::cpu, 0, "cpu:0", "", "", 0, 0});
        support_ = backend_->probe(*Topology::create(parts));
    }
    void SetUp() override {
        open(create(FileOptions{base::FileIo::automatic}));
        ASSERT_TRUE(support_.usable) << support_.reason;
    }

    Result<std::unique_ptr<backend::Registration>> attach(const Buffer& buffer, backend::Access access,
                                                          backend::AttachOptions options = {}) {
        options.access = access;
        return backend_->attach(buffer, options);
    }

    // Moves bytes between a file and memory.
    Result<void> move(backend::Registration& file, Bytes file_at, void* memory, Bytes size, bool write) {
        const auto access = write ? backend::Access::read : backend::Access::write;
        auto other = attach(Buffer::host(memory, size), access);
        if (!other) return other.error();
        backend::Piece piece{&file, file_at, other->get(), 0, size, 0, nullptr};
        if (write) piece = {other->get(), 0, &file, file_at, size, 1, nullptr};
        return move(piece);
    }
    Result<void> move(const backend::Piece& piece) { return test::StartedPiece(*backend_, piece).wait(); }

    // Writes `text` as a whole file, up to and including commit().
    Result<void> replace(const std::string& path, std::string text, backend::AttachOptions options = {}) {
        options.expected_size = text.size();
        auto file = attach(Buffer::file(path), backend::Access::write, options);
        if (!file) return file.error();
        if (auto moved = move(**file, 0, text.data(), text.size(), true); !moved) return moved;
        return (*file)->commit();
    }

    Folder folder_;
    std::unique_ptr<backend::Backend> backend_;
    backend::Support support_;
};

}  // namespace sidestep::backends::file
