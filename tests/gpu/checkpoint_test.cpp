// Checkpoints saved from GPUs and loaded onto them; every byte is looked at around the library.
#include <unistd.h>

#include <filesystem>

#include <fmt/format.h>

#include <sidestep/context.hpp>

#include "tests/gpu/raw_memory.hpp"

namespace sidestep::gpu_tests::checkpoint {
namespace {

namespace fs = std::filesystem;

class Checkpoints : public ContextTest {
protected:
    void SetUp() override {
        ContextTest::SetUp();
        if (IsSkipped()) return;
        for (int gpu = 0; gpu < machine().gpus(); ++gpu) gpus_.push_back(Place::gpu(gpu));
    }
    void TearDown() override {
        std::error_code ignored;
        for (const fs::path& path : written_) fs::remove_all(path, ignored);
    }

    // A name below the folder for temporary files, or in memory; removed at the end.
    fs::path path(const std::string& name, bool in_memory = false) {
        const fs::path folder =
            in_memory && fs::is_directory("/dev/shm") ? "/dev/shm" : fs::temp_directory_path();
        written_.push_back(folder / fmt::format("sidestep-gpu-{}-{}", ::getpid(), name));
        return written_.back();
    }

    // A matrix of `rows` times `columns` 16-bit elements on one GPU, painted with its position as seed.
    void add(int gpu, std::uint64_t rows, std::uint64_t columns) {
        const Bytes bytes = rows * columns * 2;
        memory_.push_back(raw_memory(Raw::device, gpu, bytes));
        fill(memory_.back().buffer(), seed_of(tensors_.size()));
        tensors_.push_back(
            {fmt::format("t{}", tensors_.size()), Dtype::bf16, {rows, columns}, memory_.back().buffer()});
    }
    static unsigned seed_of(std::size_t tensor) { return 5000 + static_cast<unsigned>(tensor); }
    static unsigned seed_of(std::string_view name) {
        return seed_of(static_cast<std::size_t>(std::stoul(std::string(name.substr(1)))));
    }

    // Large ones, small ones of which no size is a multiple of a page, on all GPUs in turns.
    void add_a_model() {
        for (int i = 0; i < 12; ++i) {
            add(i % machine().gpus(), 1024 + static_cast<std::uint64_t>(i), 2048 + 3);
            add(i % machine().gpus(), 1, 4096 + 1);
        }
    }

    Checkpoint saved(const fs::path& to, const SaveOptions& options = {}) {
        auto done = context_->save(tensors_, to, options).wait();
        EXPECT_TRUE(done) << done.error().to_string();
        auto opened = Checkpoint::open(to);
        EXPECT_TRUE(opened) << opened.error().to_string();
        return *opened;
    }

    Result<Loaded> load(const Checkpoint& checkpoint, const LoadOptions& options) {
        auto loaded = context_->load(checkpoint, options).wait();
        EXPECT_TRUE(loaded) << loaded.error().to_string();
        if (loaded) std::fputs(loaded->report().c_str(), stdout);
        return loaded;
    }

    void expect_every_tensor(const Loaded& loaded) {
        for (const Place& place : loaded.places())
            for (const LoadedTensor& tensor : loaded.tensors(place)) {
                SCOPED_TRACE(fmt::format("{} at {}", tensor.name, place.to_string()));
                EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.buffer.address()) % 256, 0u);
                expect_pattern(tensor.buffer, seed_of(tensor.name));
            }
    }

    std::vector<Place> gpus_;
    std::vector<Allocation> memory_;
    std::vector<TensorToSave> tensors_;
    std::vector<fs::path> written_;
};

TEST_F(Checkpoints, TheWholeOnEveryGpu) {
    add_a_model();
    for (const bool in_memory : {false, true})
        for (const PageCache cache : {PageCache::automatic, PageCache::use, PageCache::bypass}) {
            SCOPED_TRACE(fmt::format("in memory {}, page cache {}", in_memory, static_cast<int>(cache)));
            SaveOptions how;
            how.page_cache = cache;
            how.verify = cache == PageCache::automatic;
            const Checkpoint checkpoint = saved(path("whole.safetensors", in_memory), how);
            LoadOptions options;
            options.to = gpus_;
            options.page_cache = cache;
            options.verify = cache != PageCache::use;
            const auto loaded = load(checkpoint, options);
            ASSERT_TRUE(loaded);
            EXPECT_EQ(loaded->receipt().verified, options.verify);
            EXPECT_EQ(loaded->receipt().storage.total(), loaded->file_bytes());
            expect_every_tensor(*loaded);
        }
}

TEST_F(Checkpoints, OneGpuAndAShareOnEach) {
    add_a_model();
    const Checkpoint checkpoint = saved(path("share.safetensors"));
    for (const Layout layout : {Layout::replicate, Layout::by_tensor}) {
        LoadOptions options;
        if (layout == Layout::by_tensor) options.to = gpus_;
        options.layout = layout;
        const auto loaded = load(checkpoint, options);
        ASSERT_TRUE(loaded);
        std::size_t count = 0;
        for (const Place& place : loaded->places()) count += loaded->tensors(place).size();
        EXPECT_EQ(count, tensors_.size());
        expect_every_tensor(*loaded);
    }
}

// Strips of rows are gathered in host memory and put back on a GPU, where the pattern is looked for.
TEST_F(Checkpoints, CutAlongEachAxis) {
    add_a_model();
    const Checkpoint checkpoint = saved(path("cut.safetensors"));
    for (const int axis : {0, 1}) {
        LoadOptions options;
        options.to = gpus_;
        options.layout = Layout::by_axis;
        options.rules = {{"*", axis}};
        options.verify = true;
        const auto loaded = load(checkpoint, options);
        ASSERT_TRUE(loaded);
        for (std::size_t i = 0; i < tensors_.size(); ++i) {
            const Bytes rows = tensors_[i].shape[0];
            const Bytes columns = tensors_[i].shape[1];
            const Allocation whole = raw_memory(Raw::device, 0, rows * columns * 2);
            clear(whole.buffer(), 0xA5);
            std::vector<BatchItem> strips;
            for (const Place& place : gpus_) {
                const LoadedTensor* part = loaded->find(tensors_[i].name, place);
                ASSERT_NE(part, nullptr);
                const Bytes strip = part->shape[1] * 2;
                if (strip == 0) continue;
                for (Bytes row = 0; row < part->shape[0]; ++row) {
                    const Bytes at =
                        axis == 0 ? (part->first + row) * columns * 2 : row * columns * 2 + part->first * 2;
                    strips.push_back(
                        {part->buffer.slice(row * strip, strip), whole.buffer().slice(at, strip)});
                }
            }
            const auto gathered = context_->copy_batch(strips).wait();
            ASSERT_TRUE(gathered) << gathered.error().to_string();
            SCOPED_TRACE(fmt::format("{} along axis {}", tensors_[i].name, axis));
            expect_pattern(whole.buffer(), seed_of(i));
        }
    }
}

TEST_F(Checkpoints, ThousandsOfSmallTensorsInShards) {
    for (int i = 0; i < 3000; ++i)
        add(i % machine().gpus(), 1, 1 + static_cast<std::uint64_t>(i * 37 % 5000));
    const fs::path folder = path("shards");
    fs::create_directory(folder);
    SaveOptions how;
    how.shard_bytes = 4_MiB;
    how.manifest = true;
    const Checkpoint checkpoint = saved(folder, how);
    EXPECT_GT(checkpoint.files().size(), 2u);
    LoadOptions options;
    options.to = gpus_;
    options.manifest = path("shards.manifest.json");  // beside the folder
    ASSERT_TRUE(fs::exists(options.manifest));
    const auto loaded = load(checkpoint, options);
    ASSERT_TRUE(loaded);
    expect_every_tensor(*loaded);
}

TEST_F(Checkpoints, TooLittleMemoryIsSaidBeforeAnythingIsRead) {
    // A hole of 4 TiB: more than any GPU has.
    const fs::path huge = path("huge.safetensors");
    constexpr Bytes bytes = Bytes{4} << 40;
    std::string header =
        fmt::format(R"({{"t0":{{"dtype":"U8","shape":[{}],"data_offsets":[0,{}]}}}})", bytes, bytes);
    header.resize((header.size() + 7) / 8 * 8, ' ');
    std::FILE* file = std::fopen(huge.c_str(), "wb");
    ASSERT_NE(file, nullptr);
    const std::uint64_t length = header.size();
    std::fwrite(&length, 8, 1, file);
    std::fwrite(header.data(), 1, header.size(), file);
    std::fclose(file);
    std::error_code failed;
    fs::resize_file(huge, 8 + length + bytes, failed);
    if (failed) GTEST_SKIP() << "the file system holds no sparse file of 4 TiB: " << failed.message();
    const auto checkpoint = Checkpoint::open(huge);
    ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
    const auto loaded = context_->load(*checkpoint, {}).wait();
    ASSERT_FALSE(loaded.ok());
    EXPECT_EQ(loaded.error().code, ErrorCode::out_of_memory) << loaded.error().to_string();
    EXPECT_NE(loaded.error().message.find("missing"), std::string::npos) << loaded.error().message;
}

}  // namespace
}  // namespace sidestep::gpu_tests::checkpoint
