// Storage that does not answer: the memory that it may still write to stays, and nobody waits for it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include <sidestep/sidestep.hpp>

#include "backends/builtin.hpp"
#include "driver/fd.hpp"
#include "driver/file_threads.hpp"
#include "driver/open_folders.hpp"
#include "driver/uring.hpp"
#include "tests/hung_reads.hpp"
#include "transfer/engine.hpp"

namespace sidestep {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// Far more than the second that the end may take, and far less than a read hangs.
constexpr auto soon = 10s;

class HungRead : public testing::Test {
protected:
    HungRead() {
        std::string name = (std::filesystem::temp_directory_path() / "sidestep-hung-XXXXXX").string();
        EXPECT_NE(::mkdtemp(name.data()), nullptr);
        folder_ = name;
        path_ = folder_ + "/x";
        std::ofstream(path_, std::ios::binary) << std::string(size, 'x');
    }
    ~HungRead() override {
        std::error_code ignored;
        std::filesystem::remove_all(folder_, ignored);
    }

    static constexpr Bytes size = 4_MiB;
    std::string folder_, path_;
};

class HungCopy : public HungRead, public testing::WithParamInterface<base::FileIo> {};

// The last of the machine goes while reads hang; they come back later.
TEST_P(HungCopy, TheEndTakesASecondAndLeavesTheMemoryToTheRead) {
    const Topology topology = *Topology::open("dgx-h100");
    auto environment = *base::Environment::read();
    environment.file_io = GetParam();
    auto registry = std::make_unique<backend::Registry>();
    backends::add_builtin(*registry, topology, environment);
    auto engine = std::make_unique<transfer::Engine>(topology, *registry, 100ms);
    engine->machine().pool.set_pinned_bound(64_MiB);
    const Allocation gpu = *transfer::allocate(*registry, Place::gpu(0), size, MemoryKind::device);
    CopyOptions options;
    options.page_cache = PageCache::use;
    options.deadline = 500ms;

    test::HungReads hung(path_);
    auto job = engine->submit(Buffer::file(path_, 0, size), gpu.buffer(), options, nullptr);
    engine->wait(job, 0ns);
    ASSERT_FALSE(job->result());
    EXPECT_EQ(job->result().error().code, ErrorCode::timed_out) << job->result().error().to_string();
    EXPECT_NE(job->result().error().message.find("still in flight"), std::string::npos);
    ASSERT_GT(hung.hanging(), 0);
    job.reset();

    const auto begin = Clock::now();
    engine.reset();
    registry.reset();
    EXPECT_LT(Clock::now() - begin, soon);
    for (const long moved : hung.release()) EXPECT_GT(moved, 0) << "the slot was freed under the read";
}

// Copies on a machine where one file hangs: what it has in flight takes all the threads that read.
struct Beside {
    Beside(base::FileIo io, const std::string& folder, const std::string& hung_path,
           PageCache page_cache = PageCache::use)
        : other(folder + "/y"), hung(hung_path) {
        std::ofstream(other, std::ios::binary) << std::string(target.size(), 'y');
        auto environment = *base::Environment::read();
        environment.file_io = io;
        backends::add_builtin(registry, topology, environment);
        engine.emplace(topology, registry, 100ms);
        options.page_cache = page_cache;
        hanging = copy(hung_path, stuck);
        while (hung.hanging() == 0) std::this_thread::sleep_for(1ms);
    }
    std::shared_ptr<transfer::Activity> copy(const std::string& path, std::string& to) {
        return engine->submit(Buffer::file(path, 0, to.size()), Buffer::host(to.data(), to.size()), options,
                              nullptr);
    }

    // The hung file is that large.
    static constexpr Bytes much = 64_MiB;
    const std::string other;
    std::string stuck = std::string(much, '\0'), target = std::string(8_MiB, '\0');
    const Topology topology = *Topology::open("dgx-h100");
    backend::Registry registry;
    std::optional<transfer::Engine> engine;
    CopyOptions options;
    test::HungReads hung;
    std::shared_ptr<transfer::Activity> hanging;
};

TEST_P(HungCopy, ACopyThatWasCancelledIsNotBegunLater) {
    std::filesystem::resize_file(path_, Beside::much);
    Beside beside(GetParam(), folder_, path_);
    const auto job = beside.copy(beside.other, beside.target);
    job->cancel();
    beside.engine->wait(job, 0ns);
    ASSERT_FALSE(job->result());
    EXPECT_EQ(job->result().error().code, ErrorCode::cancelled);
    EXPECT_EQ(job->result().error().message.find("still in flight"), std::string::npos)
        << job->result().error().to_string();
    std::fill(beside.target.begin(), beside.target.end(), 'n');

    beside.hung.release();
    beside.engine->wait(beside.hanging, 0ns);
    EXPECT_TRUE(beside.hanging->result()) << beside.hanging->result().error().to_string();
    std::string after(beside.target.size(), '\0');
    const auto next = beside.copy(beside.other, after);  // comes behind all that waits
    beside.engine->wait(next, 0ns);
    EXPECT_EQ(after.find_first_not_of('y'), std::string::npos);
    EXPECT_EQ(beside.target.find_first_not_of('n'), std::string::npos) << "it was read after its end";
}

// They stall otherwise.
TEST_P(HungCopy, OtherFilesAreReadMeanwhile) {
    std::filesystem::resize_file(path_, Beside::much);
    for (const PageCache page_cache : {PageCache::use, PageCache::bypass}) {
        // What the ring reads does not hang here.
        if (page_cache == PageCache::bypass && GetParam() != base::FileIo::threads) continue;
        Beside beside(GetParam(), folder_, path_, page_cache);
        beside.options.stall_limit = soon;
        for (int i = 0; i < 2; ++i) {
            std::fill(beside.target.begin(), beside.target.end(), 'n');
            const auto job = beside.copy(beside.other, beside.target);
            beside.engine->wait(job, 0ns);
            ASSERT_TRUE(job->result()) << job->result().error().to_string();
            EXPECT_EQ(beside.target.find_first_not_of('y'), std::string::npos);
        }
        beside.hung.release();
        beside.engine->wait(beside.hanging, 0ns);
        EXPECT_TRUE(beside.hanging->result()) << beside.hanging->result().error().to_string();
    }
}

// Every thread but this one. Before there is an engine: the thread sanitizer has one of its own, which never sleeps for long
// and begins with the first that a program starts.
std::set<std::filesystem::path> others() {
    std::thread([] {}).join();
    std::set<std::filesystem::path> all;
    for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task"))
        all.insert(thread.path());
    all.erase("/proc/self/task/" + std::to_string(::gettid()));
    return all;
}

// Of all threads of this process but those, so far.
unsigned long switches(const std::set<std::filesystem::path>& except) {
    unsigned long all = 0;
    for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
        if (except.contains(thread.path())) continue;
        std::ifstream file(thread.path() / "status");
        for (std::string line; std::getline(file, line);)
            if (line.starts_with("voluntary_ctxt_switches:"))
                all += std::stoul(line.substr(line.find(':') + 1));
    }
    return all;
}

// Whether it is waited for or not: the longer nothing moves the more seldom anybody looks.
TEST_P(HungCopy, CostsNextToNothing) {
    const auto not_ours = others();
    const Topology topology = *Topology::open("dgx-h100");
    auto environment = *base::Environment::read();
    environment.file_io = GetParam();
    backend::Registry registry;
    backends::add_builtin(registry, topology, environment);
    transfer::Engine engine(topology, registry, 100ms);
    const Allocation gpu = *transfer::allocate(registry, Place::gpu(0), size, MemoryKind::device);
    CopyOptions options;
    options.page_cache = PageCache::use;

    test::HungReads hung(path_);
    const auto job = engine.submit(Buffer::file(path_, 0, size), gpu.buffer(), options, nullptr);
    while (hung.hanging() == 0) std::this_thread::sleep_for(1ms);
    std::this_thread::sleep_for(1s);
    auto before = switches(not_ours);
    std::this_thread::sleep_for(2s);
    EXPECT_LT(switches(not_ours) - before, 20u) << "in two seconds, and nobody waits";
    before = switches(not_ours);
    EXPECT_FALSE(engine.wait(job, 3s));
    EXPECT_LT(switches(not_ours) - before, 300u) << "in three seconds; a wait begins with quick looks";
    hung.release();
    engine.wait(job, 0ns);
    EXPECT_TRUE(job->result()) << job->result().error().to_string();
}

INSTANTIATE_TEST_SUITE_P(All, HungCopy, testing::Values(base::FileIo::automatic, base::FileIo::threads));

driver::FileRequest whole(const driver::Fd& file, std::string& into) {
    driver::FileRequest request;
    request.fd = file.get();
    request.address = into.data();
    request.size = into.size();
    return request;
}

// Once nothing hangs any more.
bool comes_to_an_end(driver::FileIoEngine& engine) {
    const auto limit = Clock::now() + 1min;
    while (!engine.end() && Clock::now() < limit) std::this_thread::sleep_for(1ms);
    return engine.end();
}

TEST_F(HungRead, ThreadsThatHangAreNotWaitedFor) {
    const driver::Fd file(::open(path_.c_str(), O_RDONLY));
    std::string back(size, '\0');
    const driver::FileRequest request = whole(file, back);
    const auto engine = driver::create_thread_engine(8, 2);
    EXPECT_TRUE(driver::create_thread_engine(8, 2)->end());
    test::HungReads hung(path_);
    engine->submit(request);
    engine->flush();
    while (hung.hanging() == 0) std::this_thread::sleep_for(1ms);
    const auto begin = Clock::now();
    EXPECT_FALSE(engine->end());
    EXPECT_LT(Clock::now() - begin, soon);
    hung.release();
    EXPECT_TRUE(comes_to_an_end(*engine));
}

TEST_F(HungRead, TheKernelIsNotWaitedForEither) {
    auto engine = driver::create_uring_engine(8, 2);
    if (!engine) GTEST_SKIP() << engine.error().to_string();
    int ends[2] = {};
    ASSERT_EQ(::pipe(ends), 0);
    const driver::Fd reads(ends[0]), writes(ends[1]);
    char byte = 0;
    driver::FileRequest request;
    request.fd = reads.get();
    request.address = &byte;
    request.size = 1;
    (*engine)->submit(request);
    (*engine)->flush();
    const auto begin = Clock::now();
    EXPECT_FALSE((*engine)->end());
    EXPECT_LT(Clock::now() - begin, soon);
    ASSERT_EQ(::write(writes.get(), "x", 1), 1);
    EXPECT_TRUE(comes_to_an_end(**engine));
    EXPECT_EQ(byte, 'x');
}

// Behind one that hangs.
TEST_F(HungRead, WhatNobodyHasBegunIsTakenBack) {
    const auto expect_taken_back = [](driver::FileIoEngine& engine, driver::FileRequest request) {
        char byte = 'n';
        request.tag = 2;
        request.address = &byte;
        request.size = 1;
        engine.submit(request);
        engine.flush();
        engine.withdraw(3);  // which there is not
        engine.withdraw(2);
        std::vector<driver::FileCompletion> ended;
        const auto limit = Clock::now() + 1min;
        while (ended.empty() && Clock::now() < limit) engine.reap(ended);
        ASSERT_EQ(ended.size(), 1u);
        EXPECT_EQ(ended[0].tag, 2u);
        EXPECT_EQ(ended[0].result, -ECANCELED);
        EXPECT_EQ(byte, 'n');
    };
    const driver::Fd file(::open(path_.c_str(), O_RDONLY));
    std::string back(size, '\0');
    driver::FileRequest request = whole(file, back);
    request.tag = 1;
    for (const Bytes part : {Bytes{0}, Bytes{1_MiB}}) {
        const auto engine = driver::create_thread_engine(8, 1, driver::Wake::always, part);
        test::HungReads hung(path_);
        engine->submit(request);
        while (hung.hanging() == 0) std::this_thread::sleep_for(1ms);
        expect_taken_back(*engine, request);
        engine->withdraw(1);
        hung.release();
        std::vector<driver::FileCompletion> ended;
        while (ended.empty()) engine->reap(ended);
        EXPECT_EQ(ended[0].result, static_cast<std::int64_t>(part == 0 ? size : part)) << "what was begun";
    }
    auto ring = driver::create_uring_engine(8, 1);
    if (!ring) GTEST_SKIP() << ring.error().to_string();
    int ends[2] = {};
    ASSERT_EQ(::pipe(ends), 0);
    const driver::Fd reads(ends[0]), writes(ends[1]);
    request.fd = reads.get();
    request.size = 1;
    request.in_background = true;
    (*ring)->submit(request);
    (*ring)->flush();
    expect_taken_back(**ring, request);
    ASSERT_EQ(::write(writes.get(), "x", 1), 1);
    EXPECT_TRUE(comes_to_an_end(**ring));
    EXPECT_EQ(back[0], 'x');
}

// One folder is asked for while another does not answer.
TEST_F(HungRead, FoldersAreOpenedBesideOneThatHangs) {
    const std::string other = folder_ + "/other";
    std::filesystem::create_directory(other);
    driver::OpenFolders folders;
    const auto held = folders.open(folder_);
    ASSERT_TRUE(held);
    test::HungReads hung(folder_);
    std::thread asks([&] {
        const auto same = folders.open(folder_);
        EXPECT_TRUE(same && *same == *held);
    });
    while (hung.hanging() == 0) std::this_thread::sleep_for(1ms);
    EXPECT_TRUE(folders.open(other));
    EXPECT_EQ(hung.hanging(), 1) << "it was waited for";
    hung.release();
    asks.join();
}

// A checkpoint of one tensor, and its manifest.
class HungHeaders : public HungRead {
protected:
    HungHeaders() {
        const std::string header = R"({"t":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})";
        std::ofstream(model_, std::ios::binary)
            << static_cast<char>(header.size()) << std::string(7, '\0') << header << "data";
        EXPECT_TRUE(Checkpoint::open(model_)->write_manifest(manifest_));
    }
    // Far from both the deadline and the end of what hangs.
    static void expect_in_time(const Error& error, Clock::time_point begin, const std::string& path) {
        EXPECT_LT(Clock::now() - begin, deadline + 100ms);
        EXPECT_EQ(error.to_string(), "the deadline of 150 ms passed; the file system has not answered (" +
                                         path + "). raise the deadline");
    }

    static constexpr auto deadline = 150ms;
    const std::string model_ = folder_ + "/model.safetensors";
    const std::string manifest_ = folder_ + "/manifest";
};

TEST_F(HungHeaders, OpeningKeepsItsDeadline) {
    const CheckpointOptions options{.deadline = deadline};
    {
        test::HungReads hung(model_);
        for (const std::vector<std::string>& paths : {std::vector{model_}, std::vector{folder_}}) {
            const auto begin = Clock::now();
            const auto opened = Checkpoint::open(paths, options);
            ASSERT_FALSE(opened);
            expect_in_time(opened.error(), begin, paths.front());
        }
        EXPECT_EQ(hung.hanging(), 2);
        // What has hung comes back to nobody.
        for (const long moved : hung.release()) EXPECT_GT(moved, 0);
    }
    const auto opened = Checkpoint::open(model_, options);
    ASSERT_TRUE(opened) << opened.error().to_string();
    EXPECT_EQ(opened->tensors().size(), 1u);
}

TEST_F(HungHeaders, SoDoesALoadThatReadsAManifest) {
    const auto context = Context::open({"dgx-h100"});
    const auto opened = Checkpoint::open(model_);
    LoadOptions options;
    options.manifest = manifest_;
    options.deadline = deadline;
    {
        const test::HungReads hung(manifest_);
        const auto begin = Clock::now();
        const auto loaded = context->load(*opened, options).wait();
        ASSERT_FALSE(loaded);
        expect_in_time(loaded.error(), begin, manifest_);
    }
    const auto loaded = context->load(*opened, options).wait();
    ASSERT_TRUE(loaded) << loaded.error().to_string();
}

}  // namespace
}  // namespace sidestep
