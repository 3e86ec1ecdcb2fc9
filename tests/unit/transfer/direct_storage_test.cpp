// What backends have against one file and one memory, and what becomes of it in a plan.
#include "transfer/direct_storage.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "driver/fd.hpp"
#include "driver/page_cache.hpp"
#include "route/planner.hpp"

namespace sidestep::transfer {
namespace {

using backend::Capability;
using backend::Reach;
using backend::Support;

// Reaches storage from GPU memory, and copies between host memory and a GPU; says yes to files whose name has
// "yes".
class Picky final : public backend::Backend {
public:
    explicit Picky(int& asked) : asked_(asked) {}
    std::string_view name() const override { return "picky"; }
    Support probe(const Topology&) override { return Support::yes("here"); }
    std::vector<Capability> capabilities() const override {
        Capability storage;
        storage.from = PlaceKind::file;
        storage.to = PlaceKind::gpu;
        storage.from_memory = {MemoryKind::storage};
        storage.to_memory = {MemoryKind::device};
        storage.reach = Reach::storage_gpu;
        storage.engine = "direct storage";
        storage.max_gb_per_s = 10;
        Capability copy = storage;
        copy.from = PlaceKind::host;
        copy.from_memory = {MemoryKind::pinned};
        copy.reach = Reach::host_link;
        copy.engine = "copy engine";
        return {storage, copy};
    }
    Support reaches(const Buffer& from, const Buffer& to) override {
        ++asked_;
        if (to.place() == Place::gpu(7)) return Support::no("not this GPU", "move it");
        const Place& file = from.place().is_file() ? from.place() : to.place();
        if (file.path().find("yes") != std::string::npos) return Support::yes("proven");
        return Support::no("not this file", "take another");
    }
    Result<std::unique_ptr<backend::Registration>> attach(const Buffer&,
                                                          const backend::AttachOptions&) override {
        return Error{};
    }
    Result<backend::Progress> start(const backend::Piece&, backend::Flight&) override { return Error{}; }

private:
    int& asked_;
};

class DirectStorage : public testing::Test {
protected:
    DirectStorage() : topology(Topology::open("dgx-h100").value()) {
        registry.add(std::make_unique<Picky>(asked), topology);
    }
    std::vector<Objection> against(const Buffer& from, const Buffer& to, const CopyOptions& options = {}) {
        return objections(registry, from, to, options);
    }

    int asked = 0;
    Topology topology;
    backend::Registry registry;
    const Buffer yes = Buffer::file("/nowhere/yes"), no = Buffer::file("/nowhere/no");
    const Buffer gpu = Buffer::memory(Place::gpu(0), nullptr, 0),
                 host = Buffer::memory(Place::host(), nullptr, 0);
};

TEST_F(DirectStorage, IsAskedOnceForEachFileAndForEachFolderAndPlace) {
    std::vector<Buffer> files;
    for (const char* path : {"/a/yes1", "/a/yes2", "/a/yes3", "/b/yes4"}) files.push_back(Buffer::file(path));
    std::vector<Buffer> memories{host};
    for (const int number : {0, 0, 1, 2}) memories.push_back(Buffer::memory(Place::gpu(number), nullptr, 0));
    EXPECT_TRUE(objections(registry, files, memories, {.page_cache = PageCache::bypass}).empty());
    EXPECT_EQ(asked, 3 + 2 + 3)
        << "a folder's first file with 3 GPUs, its 2 others with one, and the other folder's";
    files.push_back(Buffer::file("/a/no"));
    EXPECT_EQ(objections(registry, files, memories, {.page_cache = PageCache::bypass}).size(), 1u);
}

TEST_F(DirectStorage, WhatIsWrongWithOnePlaceIsSaidOfThatPlace) {
    const std::vector<Buffer> files{Buffer::file("/a/yes1"), Buffer::file("/a/yes2")};
    std::vector<Buffer> memories;
    for (const int number : {7, 0}) memories.push_back(Buffer::memory(Place::gpu(number), nullptr, 0));
    const CopyOptions options{.page_cache = PageCache::bypass};
    auto found = objections(registry, files, memories, options);
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].place, Place::gpu(7));
    EXPECT_EQ(found[0].reason, "not this GPU");
    EXPECT_EQ(asked, 3) << "the first file with both, the second with the GPU that is left";
    found = objections(registry, files, std::span(memories).first(1), options);
    ASSERT_EQ(found.size(), 1u);
    EXPECT_FALSE(found[0].place) << "it is all there is";
    const std::vector<Buffer> one_bad{files[0], Buffer::file("/a/no")};
    found = objections(registry, one_bad, memories, options);
    ASSERT_EQ(found.size(), 1u);
    EXPECT_FALSE(found[0].place) << "the file is the same to every place";
}

TEST_F(DirectStorage, IsAskedForFilesAndDeviceMemoryOnly) {
    EXPECT_TRUE(against(host, gpu).empty());
    EXPECT_TRUE(against(gpu, gpu).empty());
    EXPECT_TRUE(against(no, host).empty());
    EXPECT_TRUE(against(gpu, no).empty()) << "it offers nothing in this direction";
    EXPECT_EQ(asked, 0);
    EXPECT_TRUE(against(yes, gpu).empty());
    const auto found = against(no, gpu);
    EXPECT_EQ(asked, 2);
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].backend, "picky");
    EXPECT_EQ(found[0].reason, "not this file");
    EXPECT_EQ(found[0].remedy, "take another");
}

TEST_F(DirectStorage, OptionsThatRuleItOutAreAnswerEnough) {
    CopyOptions options;
    options.require = Require::host;
    EXPECT_TRUE(against(no, gpu, options).empty()) << "the planner refuses it by itself";
    options.require = Require::any;
    options.page_cache = PageCache::use;
    ASSERT_EQ(against(yes, gpu, options).size(), 1u);
    EXPECT_EQ(asked, 0);
    options.require = Require::direct;
    EXPECT_TRUE(against(yes, gpu, options).empty());
    EXPECT_EQ(asked, 1);
}

// Some files, of which `size` bytes each are written; those of the page cache stay there.
class Loads : public DirectStorage {
protected:
    Loads() {
        std::string name = (std::filesystem::temp_directory_path() / "sidestep-direct-XXXXXX").string();
        EXPECT_NE(::mkdtemp(name.data()), nullptr);
        folder = name;
    }
    ~Loads() override {
        std::error_code ignored;
        std::filesystem::remove_all(folder, ignored);
    }
    Buffer file(const std::string& name, Bytes size, bool warm) {
        const std::string path = folder + "/" + name;
        std::ofstream(path, std::ios::binary) << std::string(size, 'x');
        const driver::Fd fd(::open(path.c_str(), O_RDWR));
        EXPECT_EQ(::fsync(fd.get()), 0);
        if (!warm) {
            EXPECT_EQ(::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED), 0);
        }
        const auto held = driver::cached_part(driver::best_cache_probe(), fd, 0, size);
        if (!held || (held->bytes > 0) != warm) tells = false;
        return Buffer::file(path);
    }
    std::vector<Objection> against_all(const std::vector<Buffer>& files) {
        return objections(registry, files, gpus, {});
    }

    std::string folder;
    bool tells = true;  // this file system does as it is told
    const std::vector<Buffer> gpus{gpu, Buffer::memory(Place::gpu(1), nullptr, 0), host};
};

TEST_F(Loads, APageCacheThatHoldsLittleOfAllIsNoObjection) {
    const Buffer large = file("yes-large", 8_MiB, false), small = file("yes-small", 1_MiB, true);
    if (!tells) GTEST_SKIP() << "the page cache of " << folder << " cannot be emptied, or asked";
    EXPECT_TRUE(against_all({small, large}).empty());
    EXPECT_EQ(asked, 3);
    EXPECT_EQ(against_all({small}).size(), 1u);
    const Buffer other = file("yes-other", 12_MiB, true);
    const auto found = against_all({small, large, other});
    ASSERT_EQ(found.size(), 1u);
    EXPECT_NE(found[0].reason.find("page cache holds most"), std::string::npos) << found[0].reason;
}

TEST_F(Loads, OneObjectionIsEnough) {
    const Buffer first = file("no-first", 1_MiB, false), next = file("no-next", 1_MiB, false);
    if (!tells) GTEST_SKIP() << "the page cache of " << folder << " cannot be emptied, or asked";
    const auto found = against_all({first, next});
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].reason, "not this file");
    EXPECT_EQ(asked, 2) << "the first file with both GPUs";
}

TEST_F(DirectStorage, AnObjectionBecomesPartOfTheRouteAndTakesNothingElse) {
    const auto offers = with(registry.offers(), against(no, gpu));
    const route::End file{no.place(), MemoryKind::storage}, device{gpu.place(), MemoryKind::device};
    const auto direct = route::plan(topology, offers, {file, device, 1_MiB});
    ASSERT_FALSE(direct);
    EXPECT_NE(direct.error().message.find("by picky direct storage: not this file"), std::string::npos)
        << direct.error().to_string();
    EXPECT_EQ(direct.error().hint, "take another");
    const auto copy = route::plan(topology, offers, {{Place::host(0), MemoryKind::pinned}, device, 1_MiB});
    ASSERT_TRUE(copy) << copy.error().to_string();
    EXPECT_EQ(copy->choices[0][0].offer, 0u);
    EXPECT_EQ(copy->choices[0][0].capability, 1u);
    EXPECT_TRUE(route::plan(topology, with(registry.offers(), against(yes, gpu)), {file, device, 1_MiB}));
}

}  // namespace
}  // namespace sidestep::transfer
