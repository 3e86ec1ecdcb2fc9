// What a child of fork() finds of its parent's objects: errors at once, and nothing of the parent's is touched.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include <sidestep/checkpoint.hpp>
#include <sidestep/collective.hpp>
#include <sidestep/sidestep.hpp>

namespace sidestep {
namespace {

constexpr Bytes size = 8_MiB;

// 0 where `claim` holds in a child; its end is that of a program that does not know of this library.
int in_child(const std::function<bool()>& claim) {
    const pid_t child = fork();
    if (child == 0) {
        alarm(60);
        _exit(claim() ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    return status;
}

template <typename T>
bool refused(const Result<T>& result) {
    return !result && result.error().code == ErrorCode::unsupported &&
           result.error().message.find("forked") != std::string::npos;
}

class ForkTest : public ::testing::Test {
protected:
    void SetUp() override {
        auto opened = Context::open({"dgx-h100"});
        ASSERT_TRUE(opened) << opened.error().to_string();
        context_.emplace(std::move(*opened));
        for (auto* memory : {&host_, &gpu_}) {
            auto made = context_->allocate(memory == &host_ ? Place::host() : Place::gpu(0), size);
            ASSERT_TRUE(made) << made.error().to_string();
            *memory = std::move(*made);
        }
        std::memset(host_.address(), 'a', size);
        // From a file, so that there are threads and a ring.
        path_ =
            (std::filesystem::temp_directory_path() / ("sidestep-fork-" + std::to_string(getpid()))).string();
        std::ofstream(path_) << std::string(size, 'b');
        ASSERT_TRUE(context_->copy(Buffer::file(path_), gpu_.buffer()).wait());
    }
    void TearDown() override { std::filesystem::remove(path_); }

    // Copies still work, and bring the right bytes.
    void expect_whole() {
        for (const PageCache way : {PageCache::use, PageCache::bypass}) {
            std::memset(host_.address(), 'x', size);
            CopyOptions options;
            options.page_cache = way;
            const auto copied = context_->copy(Buffer::file(path_), host_.buffer(), options).wait();
            ASSERT_TRUE(copied) << copied.error().to_string();
            EXPECT_EQ(std::string(static_cast<char*>(host_.address()), size), std::string(size, 'b'));
        }
    }

    std::optional<Context> context_;
    Allocation host_, gpu_;
    std::string path_;
};

TEST_F(ForkTest, AChildIsRefused) {
    std::vector<TensorToSave> tensors(1);
    tensors[0].name = "a";
    tensors[0].dtype = Dtype::u8;
    tensors[0].shape = {size};
    tensors[0].data = gpu_.buffer();
    std::vector<BatchItem> items;
    items.push_back({gpu_.buffer(), host_.buffer()});
    EXPECT_EQ(in_child([&] {
                  return refused(context_->copy(Buffer::file(path_), host_.buffer()).wait()) &&
                         refused(context_->copy_batch(items).wait()) &&
                         refused(context_->allocate(Place::host(), size)) &&
                         refused(context_->publish("fork", gpu_.buffer())) &&
                         refused(context_->save(tensors, path_ + ".out").wait());
              }),
              0);
    expect_whole();
}

TEST_F(ForkTest, ATransferOfTheParentEndsThereOnly) {
    Transfer transfer = context_->copy(Buffer::file(path_), host_.buffer());
    EXPECT_EQ(in_child([&] {
                  const auto ended = transfer.poll();
                  const bool told = ended && (*ended || refused(*ended));
                  { const Transfer dropped(std::move(transfer)); }
                  return told;
              }),
              0);
    EXPECT_TRUE(transfer.wait());
    expect_whole();
}

TEST_F(ForkTest, AChildThatDropsEverythingTakesNothingAway) {
    EXPECT_EQ(in_child([&] {
                  gpu_ = {};
                  host_ = {};
                  context_.reset();
                  return true;
              }),
              0);
    expect_whole();
}

TEST_F(ForkTest, AChildOpensItsOwn) {
#if defined(__SANITIZE_THREAD__)
    GTEST_SKIP()
        << "the thread sanitizer ends a process that starts threads after a fork of one with threads";
#endif
    EXPECT_EQ(in_child([&] {
                  auto own = Context::open({"dgx-h100"});
                  if (!own) return false;
                  auto memory = own->allocate(Place::gpu(0), size);
                  return memory && own->copy(Buffer::file(path_), memory->buffer()).wait().ok();
              }),
              0);
    expect_whole();
}

TEST_F(ForkTest, AGroupIsItsMakers) {
    auto groups = Group::local(*context_, {Place::gpu(0), Place::gpu(1)});
    ASSERT_TRUE(groups) << groups.error().to_string();
    EXPECT_EQ(in_child([&] {
                  const bool told = refused((*groups)[0].all_reduce(gpu_.address(), gpu_.address(), 16,
                                                                    Dtype::f32, Reduction{ReduceOp::sum}));
                  groups->clear();
                  return told;
              }),
              0);
    auto other = context_->allocate(Place::gpu(1), size);
    ASSERT_TRUE(other);
    for (int rank : {0, 1}) {
        void* const memory = rank == 0 ? gpu_.address() : other->address();
        EXPECT_TRUE((*groups)[rank].all_reduce(memory, memory, 16, Dtype::f32, Reduction{ReduceOp::sum}));
    }
    for (Group& group : *groups) EXPECT_TRUE(group.wait());
}

}  // namespace
}  // namespace sidestep
