// Saving tensors that lie in files: what is written is what the files hold, and files that change, end early or are
// written themselves are refused.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <thread>

#include <fmt/format.h>

#include <sidestep/sidestep.hpp>
#include "tests/contents.hpp"
#include "tests/unit/checkpoint/checkpoint_files.hpp"

namespace sidestep {
namespace {

class SaveOfFiles : public testing::Test {
protected:
    // A file of such bytes, and the whole of it or a part as a tensor.
    std::string source(const std::string& name, Bytes size) {
        return folder.write(name, test::text_of(size, size));
    }
    static TensorToSave part(const std::string& name, const std::string& path, Bytes offset, Bytes size) {
        return {name, Dtype::u8, {size}, Buffer::file(path, offset, size)};
    }

    Folder folder;
    Context context = std::move(Context::open({"dgx-h100"})).value();
};

TEST_F(SaveOfFiles, PartsOfFilesBesideMemory) {
    const std::string a = source("a", 3'000'001);
    const std::string b = source("b", 700'000);
    const auto memory = context.allocate(Place::gpu(1), 100'000);
    const std::string content = test::text_of(100'000, 7);
    ASSERT_TRUE(context.copy(Buffer::host(content.data(), content.size()), memory->buffer()).wait());
    const std::vector<TensorToSave> tensors{
        part("t0", a, 17, 2'000'003),
        part("t1", b, 0, 700'000),
        part("t2", a, 2'500'000, 500'001),
        part("t3", a, 1'000, 1'000'000),
        part("none", a, 5, 0),
        TensorToSave{"gpu", Dtype::f32, {25'000}, memory->buffer().slice(0, 100'000)}};
    const std::string all = test::get(a);
    for (const Bytes chunk : {Bytes{0}, Bytes{4096}})
        for (const Bytes shard : {Bytes{0}, Bytes{1'000'000}})
            for (const bool manifest : {false, true}) {
                SaveOptions options;
                options.chunk = chunk;
                options.shard_bytes = shard;
                options.manifest = manifest;
                options.verify = !manifest;
                std::filesystem::create_directory(folder / "out");
                const std::string path = shard > 0 ? folder / "out" : folder / "out/model.safetensors";
                const auto saved = context.save(tensors, path, options).wait();
                ASSERT_TRUE(saved) << saved.error().to_string();
                EXPECT_EQ(saved->stages.front().name, "GPU to host");
                const auto checkpoint = Checkpoint::open(path);
                ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
                ASSERT_EQ(checkpoint->tensors().size(), tensors.size());
                for (const TensorToSave& tensor : tensors) {
                    const TensorInfo* info = checkpoint->find(tensor.name);
                    const Buffer& data = tensor.data;
                    const std::string wanted =
                        data.place().is_file()
                            ? test::get(data.place().path()).substr(data.offset(), data.size())
                            : content;
                    const std::string file = test::get(checkpoint->files()[info->file].path);
                    // Nobody reads how they differ.
                    EXPECT_TRUE(file.substr(info->offset, info->bytes) == wanted) << info->name;
                }
                if (manifest) {
                    EXPECT_TRUE(checkpoint->verify_manifest(path + ".manifest.json"));
                }
                std::filesystem::remove_all(folder / "out");
            }
}

// For as long as it lives, the process may have so many descriptors.
class DescriptorLimit {
public:
    explicit DescriptorLimit(rlim_t most) {
        EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
        const rlimit less{std::min(most, before_.rlim_max), before_.rlim_max};
        EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &less), 0);
    }
    ~DescriptorLimit() { EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before_), 0); }
    DescriptorLimit(const DescriptorLimit&) = delete;
    DescriptorLimit& operator=(const DescriptorLimit&) = delete;

private:
    rlimit before_{};
};

// As many as a shell gives: one for each file that is written is enough, and none stays with those that are read.
TEST_F(SaveOfFiles, MoreFilesToMoreFilesThanHalfOfTheDescriptors) {
    constexpr std::size_t count = 640;
    constexpr Bytes size = 5000;
    std::vector<TensorToSave> tensors;
    for (std::size_t i = 0; i < count; ++i)
        tensors.push_back(part(fmt::format("t{:04}", i), source(fmt::format("source {}", i), size), 0, size));
    const std::string wanted = test::get(folder / "source 7");
    const DescriptorLimit limit(1024);
    for (const bool memory : {false, true}) {
        SCOPED_TRACE(memory ? "from memory" : "from files");
        SaveOptions options;
        options.shard_bytes = size;
        options.manifest = true;
        // Around the page cache a file takes a second descriptor while it is written.
        if (memory) options.page_cache = PageCache::bypass;
        const std::string out = folder / "out";
        std::filesystem::create_directory(out);
        if (memory)
            for (TensorToSave& tensor : tensors) tensor.data = Buffer::host(wanted.data(), size);
        const auto saved = context.save(tensors, out, options).wait();
        ASSERT_TRUE(saved) << saved.error().to_string();
        const auto checkpoint = Checkpoint::open(out);
        ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
        ASSERT_EQ(checkpoint->files().size(), count);
        for (const TensorInfo& tensor : checkpoint->tensors()) {
            const auto at = std::stoul(tensor.name.substr(1));
            const std::string file = test::get(checkpoint->files()[tensor.file].path);
            EXPECT_TRUE(file.substr(tensor.offset, tensor.bytes) ==
                        (memory ? wanted : test::get(folder / fmt::format("source {}", at))))
                << tensor.name;
        }
        std::filesystem::remove_all(out);
    }
}

TEST_F(SaveOfFiles, WhatIsRefused) {
    const std::string a = source("a", 1000);
    folder.write("model.safetensors", "earlier");
    struct Case {
        TensorToSave tensor;
        std::string to;
        ErrorCode code;
        std::string word;
    };
    for (const Case& each : {
             Case{part("x", folder / "none", 0, 10), "model.safetensors", ErrorCode::not_found, "none"},
             Case{part("x", a, 900, 200), "model.safetensors", ErrorCode::end_of_file, "1000 bytes"},
             Case{part("x", folder.path(), 0, 10), "model.safetensors", ErrorCode::invalid_argument,
                  "directory"},
             Case{part("x", a, 0, 10), "a", ErrorCode::invalid_argument, "is one of them"},
         }) {
        const auto saved = context.save({each.tensor}, folder / each.to).wait();
        ASSERT_FALSE(saved) << each.word;
        EXPECT_EQ(saved.error().code, each.code) << saved.error().to_string();
        EXPECT_NE(saved.error().to_string().find(each.word), std::string::npos) << saved.error().to_string();
        EXPECT_EQ(test::get(folder / "model.safetensors"), "earlier");
        EXPECT_EQ(test::get(a).size(), 1000u);
    }
}

// The earlier checkpoint stays, whatever becomes of the file meanwhile.
TEST_F(SaveOfFiles, OneThatChangesMeanwhileIsNoticed) {
    struct Case {
        std::function<void(const std::string&)> change;
        std::string word;
    };
    for (const Case& each : {
             Case{[](const std::string& path) { std::filesystem::resize_file(path, 100); }, "big"},
             Case{
                 [](const std::string& path) { std::fstream(path, std::ios::in | std::ios::out) << "other"; },
                 "somebody wrote to it"},
             Case{[](const std::string& path) { std::filesystem::rename(path + " too", path); },
                  "another file has its name"},
         }) {
        const std::string path = folder.write("big", test::text_of(64 << 20));
        folder.write("big too", test::text_of(64 << 20));
        folder.write("model.safetensors", "earlier");
        // Longer than the clock that files are stamped with takes for a step.
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        SaveOptions options;
        options.chunk = 4096;
        Transfer transfer =
            context.save({part("x", path, 0, 64 << 20)}, folder / "model.safetensors", options);
        while (transfer.bytes_done() == 0) std::this_thread::yield();
        each.change(path);
        const auto saved = transfer.wait();
        ASSERT_FALSE(saved) << each.word;
        EXPECT_NE(saved.error().to_string().find(each.word), std::string::npos) << saved.error().to_string();
        EXPECT_EQ(test::get(folder / "model.safetensors"), "earlier");
    }
}

}  // namespace
}  // namespace sidestep
