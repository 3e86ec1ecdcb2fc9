// Real files on emulated machines: spread over GPUs and gathered from them again.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <sidestep/sidestep.hpp>
#include "context/impl.hpp"
#include "tests/contents.hpp"

namespace sidestep {
namespace {

using transfer::Run;

// Every byte of every file, one file behind the other: to all memories, or file by file in turns.
class InTurns final : public transfer::Placement {
public:
    InTurns(std::vector<Bytes> at, std::uint32_t memories) : at_(std::move(at)), memories_(memories) {}
    void runs(std::size_t file, transfer::FileRange range, std::vector<Run>& runs) const override {
        const auto memory = memories_ == 0 ? Run::every_memory : static_cast<std::uint32_t>(file % memories_);
        runs.push_back({range.begin, range.end - range.begin, memory, at_[file] + range.begin});
    }
    std::string name_of(std::size_t file, Bytes) const override { return "file " + std::to_string(file); }

private:
    std::vector<Bytes> at_;
    std::uint32_t memories_;  // 0: every one
};

class SpreadTest : public testing::Test {
protected:
    SpreadTest() {
        std::string name = (std::filesystem::temp_directory_path() / "sidestep-spread-XXXXXX").string();
        EXPECT_NE(::mkdtemp(name.data()), nullptr);
        folder_ = name;
        for (const Bytes size : {Bytes{9'000'001}, Bytes{1}, Bytes{0}, 4_MiB, Bytes{5'000'000}}) {
            at_.push_back(total_);
            std::string text = test::text_of(size, texts_.size());
            const std::string path = folder_ + "/" + std::to_string(texts_.size());
            std::ofstream(path, std::ios::binary) << text;
            spread_.files.push_back({path, 0, {}});
            if (size > 0) spread_.files.back().ranges.push_back({0, size});
            texts_.push_back(std::move(text));
            total_ += (size + 255) / 256 * 256;
        }
    }
    ~SpreadTest() override {
        std::error_code ignored;
        std::filesystem::remove_all(folder_, ignored);
    }

    void open(const char* machine, int gpus) {
        context_.emplace(*Context::open({machine}));
        for (int gpu = 0; gpu < gpus; ++gpu) {
            memories_.push_back(*context_->allocate(Place::gpu(gpu), total_));
            std::memset(memories_.back().address(), 0, total_);
            spread_.memories.push_back(memories_.back().buffer());
        }
    }
    Result<Receipt> run(const CopyOptions& options = {}) {
        auto& engine = *ContextAccess::impl(*context_).engine;
        auto job = engine.submit_spread(spread_, options);
        engine.wait(job, std::chrono::nanoseconds(0));
        return job->result();
    }
    bool holds(std::size_t memory, std::size_t file) const {
        const auto* bytes = static_cast<const char*>(memories_[memory].address()) + at_[file];
        return std::memcmp(bytes, texts_[file].data(), texts_[file].size()) == 0;
    }
    Bytes total_of_files() const {
        Bytes sum = 0;
        for (const std::string& text : texts_) sum += text.size();
        return sum;
    }

    std::string folder_;
    std::vector<std::string> texts_;
    std::vector<Bytes> at_;
    Bytes total_ = 0;
    transfer::Spread spread_;
    std::optional<Context> context_;
    std::vector<Allocation> memories_;
};

struct Way {
    const char* machine;
    int gpus;
    PageCache cache;
};

class SpreadWays : public SpreadTest, public testing::WithParamInterface<Way> {};

TEST_P(SpreadWays, EveryGpuGetsEveryFile) {
    const auto [machine, gpus, cache] = GetParam();
    open(machine, gpus);
    spread_.placement = std::make_shared<InTurns>(at_, 0);
    CopyOptions options;
    options.verify = true;
    options.page_cache = cache;
    const auto receipt = run(options);
    ASSERT_TRUE(receipt) << receipt.error().to_string();
    EXPECT_TRUE(receipt->verified);
    for (std::size_t memory = 0; memory < memories_.size(); ++memory)
        for (std::size_t file = 0; file < texts_.size(); ++file)
            EXPECT_TRUE(holds(memory, file)) << memory << ' ' << file;
    const bool nvlink = std::string(machine) == "dgx-h100" && gpus > 1;
    EXPECT_EQ(receipt->route->lanes[0].hops.size(), nvlink ? 3u : 2u) << receipt->explain();
    Bytes files = 0;
    for (const auto& file : spread_.files) files += file.bytes();
    EXPECT_EQ(receipt->bytes, files * static_cast<Bytes>(gpus));
    // Around the page cache whole blocks are read, a few bytes more than asked for.
    EXPECT_GE(receipt->storage.total(), files);
    EXPECT_LE(receipt->storage.total(), files + 64_KiB);
    EXPECT_FALSE(receipt->to_json().empty());
}

INSTANTIATE_TEST_SUITE_P(Machines, SpreadWays,
                         testing::Values(Way{"dgx-h100", 1, PageCache::automatic},
                                         Way{"dgx-h100", 8, PageCache::automatic},
                                         Way{"dgx-h100", 3, PageCache::bypass},
                                         Way{"dgx-h100", 2, PageCache::use},
                                         Way{"pcie-4l40s", 4, PageCache::automatic}),
                         [](const auto& test) {
                             return std::string(test.param.machine).substr(0, 4) == "pcie"
                                        ? "Pcie" + std::to_string(test.param.gpus)
                                        : "Nvlink" + std::to_string(test.param.gpus);
                         });

TEST_F(SpreadTest, FilesInTurnsAndBackAgain) {
    open("dgx-h100", 3);
    spread_.placement = std::make_shared<InTurns>(at_, 3);
    const auto loaded = run();
    ASSERT_TRUE(loaded) << loaded.error().to_string();
    for (std::size_t file = 0; file < texts_.size(); ++file) EXPECT_TRUE(holds(file % 3, file)) << file;

    spread_.direction = transfer::SpreadDirection::to_file;
    for (auto& file : spread_.files) file.path += ".new";
    CopyOptions options;
    options.verify = true;
    options.sync_file = true;
    const auto saved = run(options);
    ASSERT_TRUE(saved) << saved.error().to_string();
    EXPECT_TRUE(saved->verified);
    EXPECT_EQ(saved->route->lanes.size(), 3u);
    for (std::size_t file = 0; file < texts_.size(); ++file)
        EXPECT_EQ(test::get(spread_.files[file].path), texts_[file]) << file;
}

// Where four or more processors are, the files are written through maps of them.
TEST_F(SpreadTest, FilesInMemoryAppearWholeOrNotAtAll) {
    if (!std::filesystem::is_directory("/dev/shm")) GTEST_SKIP() << "there is no /dev/shm";
    open("dgx-h100", 3);
    spread_.placement = std::make_shared<InTurns>(at_, 3);
    ASSERT_TRUE(run());
    std::string name = "/dev/shm/sidestep-spread-XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    spread_.direction = transfer::SpreadDirection::to_file;
    for (std::size_t file = 0; file < texts_.size(); ++file)
        spread_.files[file].path = name + "/" + std::to_string(file);

    auto& engine = *ContextAccess::impl(*context_).engine;
    const auto job = engine.submit_spread(spread_, {});
    job->cancel();
    engine.wait(job, std::chrono::nanoseconds(0));
    if (!job->result()) {  // else it was over before
        EXPECT_EQ(job->result().error().code, ErrorCode::cancelled);
        EXPECT_TRUE(std::filesystem::is_empty(name));
    }
    CopyOptions options;
    options.verify = true;
    options.sync_file = true;
    const auto saved = run(options);
    EXPECT_TRUE(saved) << saved.error().to_string();
    EXPECT_EQ(saved ? saved->storage.page_cache : 0, total_of_files());
    for (std::size_t file = 0; file < texts_.size(); ++file)
        EXPECT_EQ(test::get(spread_.files[file].path), texts_[file]) << file;
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(name), {}),
              static_cast<std::ptrdiff_t>(texts_.size()));
    std::filesystem::remove_all(name);
}

TEST_F(SpreadTest, AFolderThatIsMissingIsToldFirst) {
    open("dgx-h100", 1);
    spread_.placement = std::make_shared<InTurns>(at_, 1);
    spread_.direction = transfer::SpreadDirection::to_file;
    spread_.files[3].path = folder_ + "/nowhere/x";
    const std::string before = test::get(spread_.files[0].path);
    const auto failed = run();
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().code, ErrorCode::not_found);
    EXPECT_EQ(test::get(spread_.files[0].path), before);
}

TEST_F(SpreadTest, GpusThatAreNotThereAreNamed) {
    open("dgx-h100", 1);
    spread_.placement = std::make_shared<InTurns>(at_, 0);
    spread_.memories.push_back(Buffer::gpu(9, memories_[0].address(), total_));
    const auto failed = run();
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().code, ErrorCode::not_found);
}

}  // namespace
}  // namespace sidestep
