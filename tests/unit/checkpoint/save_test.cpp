// Saving from an emulated machine: what is written is what was in memory, and a failure leaves what was
// there.
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <random>
#include <set>

#include <fmt/format.h>

#include <sidestep/sidestep.hpp>
#include "tests/contents.hpp"
#include "tests/unit/checkpoint/checkpoint_files.hpp"

namespace sidestep {
namespace {

namespace fs = std::filesystem;

// Tensors in memory of their own, and what is in them.
struct Tensors {
    std::vector<TensorToSave> list;
    std::vector<Allocation> memory;
    std::vector<std::string> bytes;

    void add(const Context& context, const std::string& name, Dtype dtype, std::vector<std::uint64_t> shape,
             const Place& place, std::mt19937& random) {
        TensorInfo info{name, dtype, "", std::move(shape), 0, 0, 0};
        const Bytes size = info.elements() * static_cast<Bytes>(bits_of(dtype)) / 8;
        std::string content = test::text_of(size, random());
        memory.push_back(std::move(context.allocate(place, std::max<Bytes>(size, 1))).value());
        const Buffer data = memory.back().buffer().slice(0, size);
        if (size > 0) {
            const auto copied = context.copy(Buffer::host(content.data(), size), data).wait();
            EXPECT_TRUE(copied) << copied.error().to_string();
        }
        bytes.push_back(std::move(content));
        list.push_back({name, dtype, info.shape, data});
    }
};

std::set<std::string> names_in(const std::string& folder) {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename());
    return names;
}

class Save : public testing::Test {
protected:
    Tensors every_type() {
        Tensors tensors;
        for (int type = 0; type < 22; ++type) {
            const auto dtype = static_cast<Dtype>(type);
            const std::string name(to_string(dtype));
            const Place place = type % 5 == 4 ? Place::host() : Place::gpu(type % 5);
            tensors.add(context, name, dtype, {8, 1 + random() % 5000}, place, random);
            tensors.add(context, name + " none", dtype, {0}, place, random);
            if (bits_of(dtype) >= 8) tensors.add(context, name + " \"scalar\"", dtype, {}, place, random);
        }
        return tensors;
    }

    // What a reader of the file finds.
    void expect_on_disk(const std::string& path, const Tensors& tensors) {
        const auto checkpoint = Checkpoint::open(path);
        ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
        EXPECT_EQ(checkpoint->tensors().size(), tensors.list.size());
        for (std::size_t i = 0; i < tensors.list.size(); ++i) {
            const TensorInfo* info = checkpoint->find(tensors.list[i].name);
            ASSERT_NE(info, nullptr) << tensors.list[i].name;
            EXPECT_EQ(info->dtype, tensors.list[i].dtype);
            EXPECT_EQ(info->shape, tensors.list[i].shape);
            const std::string file = test::get(checkpoint->files()[info->file].path);
            EXPECT_EQ(file.substr(info->offset, info->bytes), tensors.bytes[i]) << info->name;
        }
    }

    Error error_of(const std::vector<TensorToSave>& tensors, const std::string& path,
                   const SaveOptions& options = {}) {
        const auto saved = context.save(tensors, path, options).wait();
        EXPECT_FALSE(saved);
        return saved ? Error{} : saved.error();
    }

    Folder folder;
    std::mt19937 random{5};
    Context context = std::move(Context::open({"dgx-h100"})).value();
};

TEST_F(Save, EveryTypeFromEveryPlace) {
    const Tensors tensors = every_type();
    SaveOptions options;
    options.metadata = {{"format", "pt"}, {"step", "7"}};
    for (const bool verify : {false, true}) {
        options.verify = verify;
        options.sync_file = verify;
        const auto saved = context.save(tensors.list, folder / "model.safetensors", options).wait();
        ASSERT_TRUE(saved) << saved.error().to_string();
        EXPECT_EQ(saved->verified, verify);
        expect_on_disk(folder / "model.safetensors", tensors);
    }
    EXPECT_EQ(names_in(folder.path()), std::set<std::string>{"model.safetensors"});
    EXPECT_EQ(Checkpoint::open(folder.path())->metadata().size(), 2u);
}

// A soft limit on open files, as long as it lives.
class FewDescriptors {
public:
    explicit FewDescriptors(std::size_t more) {
        ::getrlimit(RLIMIT_NOFILE, &before_);
        struct rlimit limit = before_;
        limit.rlim_cur = names_in("/proc/self/fd").size() + more;
        EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
    }
    ~FewDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }

private:
    struct rlimit before_ {};
};

TEST_F(Save, AFileTakesOneDescriptor) {
    Tensors tensors;
    for (int i = 0; i < 200; ++i)
        tensors.add(context, fmt::format("t{:03}", i), Dtype::u8, {70'000}, Place::host(), random);
    SaveOptions options;
    options.shard_bytes = 70'000;
    options.manifest = true;
    ASSERT_TRUE(context.save({tensors.list[0]}, folder.path(), options).wait()) << "what is opened once";
    const FewDescriptors few(250);
    for (const bool sync : {false, true})
        for (const PageCache cache : {PageCache::automatic, PageCache::bypass})
            for (const bool verify : {false, true}) {
                SCOPED_TRACE(
                    fmt::format("sync {}, bypass {}, verify {}", sync, cache == PageCache::bypass, verify));
                options.sync_file = sync;
                options.page_cache = cache;
                options.verify = verify;
                const auto saved = context.save(tensors.list, folder.path(), options).wait();
                ASSERT_TRUE(saved) << saved.error().to_string();
                if (verify) expect_on_disk(folder.path(), tensors);
            }
}

TEST_F(Save, WhatWasSavedIsLoadedAgain) {
    const Tensors tensors = every_type();
    ASSERT_TRUE(context.save(tensors.list, folder / "model.safetensors").wait());
    LoadOptions options;
    options.to = {Place::gpu(6), Place::gpu(7)};
    const auto loaded = context.load(*Checkpoint::open(folder.path()), options).wait();
    ASSERT_TRUE(loaded) << loaded.error().to_string();
    std::vector<TensorToSave> again;
    for (const LoadedTensor& tensor : loaded->tensors(Place::gpu(7)))
        again.push_back({std::string(tensor.name), tensor.dtype, tensor.shape, tensor.buffer});
    ASSERT_TRUE(context.save(again, folder / "again.safetensors").wait());
    EXPECT_EQ(test::get(folder / "model.safetensors"), test::get(folder / "again.safetensors"));
}

TEST_F(Save, SeveralFilesAndTheirIndex) {
    const Tensors tensors = every_type();
    SaveOptions options;
    options.shard_bytes = 40'000;
    options.manifest = true;
    folder.write("model.safetensors.index.json", "of an earlier checkpoint");
    const auto saved = context.save(tensors.list, folder.path(), options).wait();
    ASSERT_TRUE(saved) << saved.error().to_string();
    expect_on_disk(folder.path(), tensors);
    const auto checkpoint = Checkpoint::open(folder.path());
    ASSERT_GT(checkpoint->files().size(), 5u);
    EXPECT_TRUE(checkpoint->notes().empty()) << checkpoint->notes()[0];
    EXPECT_EQ(fs::path(checkpoint->files()[0].path).filename(),
              fmt::format("model-00001-of-{:05}.safetensors", checkpoint->files().size()));
    for (const CheckpointFile& file : checkpoint->files()) EXPECT_LT(file.size, 350'000u);
    EXPECT_EQ(names_in(folder.path()).size(), checkpoint->files().size() + 1);
    LoadOptions load;
    load.manifest = folder.path() + ".manifest.json";
    const auto loaded = context.load(*checkpoint, load).wait();
    EXPECT_TRUE(loaded) << loaded.error().to_string();
    fs::remove(load.manifest);
}

TEST_F(Save, TheManifestIsThatOfTheFile) {
    Tensors tensors;
    tensors.add(context, "a", Dtype::u8, {(3 << 20) + 5}, Place::gpu(0), random);
    tensors.add(context, "b", Dtype::f32, {1000}, Place::host(), random);
    SaveOptions options;
    options.manifest = true;
    const std::string path = folder / "model.safetensors";
    ASSERT_TRUE(context.save(tensors.list, path, options).wait());
    const auto checked = Checkpoint::open(path)->verify_manifest(path + ".manifest.json");
    ASSERT_TRUE(checked) << checked.error().to_string();
    EXPECT_EQ(checked->blocks, 4u);
    EXPECT_EQ(names_in(folder.path()),
              (std::set<std::string>{"model.safetensors", "model.safetensors.manifest.json"}));
}

// The manifest could not name such a file; one folder up it does not matter.
TEST_F(Save, NoManifestOfAFileWhoseNameIsNoUtf8) {
    Tensors tensors;
    tensors.add(context, "a", Dtype::u8, {100}, Place::gpu(0), random);
    SaveOptions options;
    options.manifest = true;
    const Error error = error_of(tensors.list, folder / "caf\xe9", options);
    EXPECT_EQ(error.code, ErrorCode::unsupported);
    EXPECT_NE(error.message.find("\"caf\\xe9\""), std::string::npos) << error.message;
    EXPECT_TRUE(names_in(folder.path()).empty());

    const std::string path = folder / "d\xe9r";
    fs::create_directory(path);
    options.shard_bytes = 1000;
    const auto saved = context.save(tensors.list, path, options).wait();
    ASSERT_TRUE(saved) << saved.error().to_string();
    EXPECT_TRUE(Checkpoint::open(path)->verify_manifest(path + ".manifest.json"));
}

TEST_F(Save, NothingAtAll) {
    ASSERT_TRUE(context.save({}, folder / "none.safetensors").wait());
    EXPECT_TRUE(Checkpoint::open(folder / "none.safetensors")->tensors().empty());
}

TEST_F(Save, ManySmallTensors) {
    Tensors tensors;
    for (int i = 0; i < 3000; ++i)
        tensors.add(context, fmt::format("t{}", i), Dtype::u8, {1 + random() % 40}, Place::gpu(i % 8),
                    random);
    const auto saved = context.save(tensors.list, folder / "model.safetensors").wait();
    ASSERT_TRUE(saved) << saved.error().to_string();
    const std::string file = test::get(folder / "model.safetensors");
    const auto checkpoint = Checkpoint::open(folder / "model.safetensors");
    for (std::size_t i = 0; i < 3000; i += 7) {
        const TensorInfo* info = checkpoint->find(tensors.list[i].name);
        EXPECT_EQ(file.substr(info->offset, info->bytes), tensors.bytes[i]);
    }
}

TEST_F(Save, PublishedMemory) {
    ContextOptions ours;
    ours.machine = "dgx-h100";
    ours.peer_folder = folder / "peers";
    context = std::move(Context::open(ours)).value();
    Tensors tensors;
    for (const Place& place : {Place::gpu(2), Place::host()})
        tensors.add(context, place.to_string(), Dtype::f32, {3, 1000}, place, random);
    // Only memory that is made for it can be published on the host.
    tensors.memory[1] = std::move(context.allocate(Place::host(), 12000, MemoryKind::pageable)).value();
    std::memcpy(tensors.memory[1].address(), tensors.bytes[1].data(), 12000);
    std::vector<Publication> published;
    for (std::size_t i = 0; i < 2; ++i) {
        auto publication = context.publish(fmt::format("kv{}", i), tensors.memory[i]);
        ASSERT_TRUE(publication) << publication.error().to_string();
        published.push_back(std::move(*publication));
        tensors.list[i].data = Buffer::shared(fmt::format("kv{}", i));
    }
    const auto saved = context.save(tensors.list, folder / "model.safetensors").wait();
    ASSERT_TRUE(saved) << saved.error().to_string();
    expect_on_disk(folder / "model.safetensors", tensors);
    published.clear();
    const Error gone = error_of(tensors.list, folder / "model.safetensors");
    EXPECT_EQ(gone.code, ErrorCode::not_found) << gone.to_string();
    expect_on_disk(folder / "model.safetensors", tensors);
}

TEST_F(Save, WhatCannotBeSaved) {
    Tensors tensors;
    tensors.add(context, "w", Dtype::f32, {10}, Place::gpu(0), random);
    const std::string path = folder / "model.safetensors";
    const auto refused = [&](TensorToSave tensor, const std::string& word) {
        const Error error = error_of({tensors.list[0], std::move(tensor)}, path);
        EXPECT_EQ(error.code, ErrorCode::invalid_argument) << error.to_string();
        EXPECT_NE(error.to_string().find(word), std::string::npos) << error.to_string();
    };
    const Buffer data = tensors.list[0].data;
    refused({"w", Dtype::f32, {10}, data}, "tensor \"w\"");
    refused({"x", Dtype::f32, {11}, data}, "44 bytes");
    refused({"x", Dtype::f4, {3}, data.slice(0, 2)}, "\"x\"");
    refused({"x", Dtype::other, {40}, data}, "\"x\"");
    refused({"__metadata__", Dtype::f32, {10}, data}, "__metadata__");
    refused({"x", Dtype::u8, {4096}, Buffer::file("p", ~Bytes{0} - 4095, 4096)}, "largest file offset");
    refused({"x", Dtype::u8, {40}, Buffer::memory(*Place::parse("p2pmem:0000:03:00.0"), data.address(), 40)},
            "published memory");
    EXPECT_EQ(error_of(tensors.list, "").code, ErrorCode::invalid_argument);
    EXPECT_FALSE(fs::exists(path));
    SaveOptions options;
    options.shard_bytes = 100;
    EXPECT_EQ(error_of(tensors.list, folder / "none", options).code, ErrorCode::not_found);
    folder.write("file", "");
    EXPECT_EQ(error_of(tensors.list, folder / "file", options).code, ErrorCode::invalid_argument);
}

TEST_F(Save, CancelledLeavesWhatWasThere) {
    Tensors tensors;
    tensors.add(context, "w", Dtype::u8, {64 << 20}, Place::gpu(0), random);
    folder.write("model.safetensors", "old");
    Transfer transfer = context.save(tensors.list, folder / "model.safetensors");
    transfer.cancel();
    const auto saved = transfer.wait();
    EXPECT_EQ(names_in(folder.path()), std::set<std::string>{"model.safetensors"});
    if (saved) GTEST_SKIP() << "the save had ended before it was cancelled";
    EXPECT_EQ(saved.error().code, ErrorCode::cancelled);
    EXPECT_EQ(test::get(folder / "model.safetensors"), "old");
}

// A tmpfs of its own is full: the earlier checkpoint stays, with its index.
TEST_F(Save, AFullDiskLeavesTheEarlierCheckpoint) {
    if (::geteuid() != 0 || ::mount("none", folder.path().c_str(), "tmpfs", 0, "size=4m") != 0)
        GTEST_SKIP() << "a small tmpfs cannot be mounted: " << std::strerror(errno);
    Tensors old;
    old.add(context, "w", Dtype::u8, {1 << 20}, Place::gpu(0), random);
    old.add(context, "v", Dtype::u8, {1 << 20}, Place::gpu(1), random);
    SaveOptions options;
    options.shard_bytes = 1 << 20;
    EXPECT_TRUE(context.save(old.list, folder.path(), options).wait());
    const auto names = names_in(folder.path());
    Tensors large;
    for (const char* name : {"w", "v"}) large.add(context, name, Dtype::u8, {3 << 20}, Place::gpu(0), random);
    const Error error = error_of(large.list, folder.path(), options);
    EXPECT_EQ(error.code, ErrorCode::no_space) << error.to_string();
    EXPECT_EQ(names_in(folder.path()), names);
    expect_on_disk(folder.path(), old);
    ::umount2(folder.path().c_str(), MNT_DETACH);
}

}  // namespace
}  // namespace sidestep
