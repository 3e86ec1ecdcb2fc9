// Whole copies over an emulated machine and over this machine's host memory and files.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include <sidestep/cuda.hpp>
#include <sidestep/sidestep.hpp>

#include "tests/contents.hpp"

namespace sidestep {
namespace {

namespace fs = std::filesystem;

class ContextTest : public testing::Test {
protected:
    ContextTest() : context(*Context::open({"dgx-h100"})) {
        directory = fs::temp_directory_path() / ("sidestep-context-" + std::to_string(::getpid()));
        fs::create_directories(directory);
    }
    ~ContextTest() override {
        std::error_code ignored;  // a name that was published too late may be withdrawn meanwhile
        fs::remove_all(directory, ignored);
    }

    std::string path(const char* name) const { return (directory / name).string(); }
    std::string make_file(const char* name, Bytes bytes) {
        test::put(path(name), test::text_of(bytes, bytes));
        return path(name);
    }

    Context context;
    fs::path directory;
};

// A member without a value of its own would be a warning here, and so an error.
TEST(ContextOptions, AnyOfThemMayBeNamedAlone) {
    EXPECT_TRUE(ContextOptions{.nodes = "n=host"}.machine.empty());
    EXPECT_TRUE(ContextOptions{.key_file = "key"}.probe_file.empty());
}

// The numbers of the other GPUs stay as they were.
TEST_F(ContextTest, AGpuThatTheDriverLostLeavesAGapAndTheOthersWork) {
    Topology::Parts parts = Topology::open("dgx-h100!gpu:3.lost")->parts();
    for (Device& device : parts.devices) {
        if (device.kind != DeviceKind::gpu || device.index < 3) continue;
        ++device.index;
        device.name = Place::gpu(device.index).to_string();
    }
    ContextOptions options;
    options.machine = path("gap.json");
    options.relay_memory = 1_MiB;
    test::put(options.machine, Topology::create(std::move(parts))->to_json());
    auto opened = Context::open(options);
    ASSERT_TRUE(opened) << opened.error().to_string();
    ASSERT_TRUE(opened->topology().peer_access(0, 7).allowed);

    const std::string source = make_file("source", 3'000'001);
    auto last = opened->allocate(Place::gpu(7), 3'000'001);
    auto first = opened->allocate(Place::gpu(0), 3'000'001);
    ASSERT_TRUE(last) << last.error().to_string();
    ASSERT_TRUE(first);
    CopyOptions verify;
    verify.verify = true;
    for (const auto& [from, to] :
         {std::pair(Buffer::file(source), last->buffer()), std::pair(last->buffer(), first->buffer()),
          std::pair(first->buffer(), Buffer::file(path("target")))}) {
        const auto copied = opened->copy(from, to, verify).wait();
        ASSERT_TRUE(copied) << copied.error().to_string();
    }
    EXPECT_EQ(test::get(path("target")), test::get(source));
    EXPECT_EQ(opened->allocate(Place::gpu(7), 1ull << 60).error().code, ErrorCode::out_of_memory);

    const auto lost = opened->allocate(Place::gpu(3), 1);
    EXPECT_EQ(lost.error().code, ErrorCode::not_found);
    EXPECT_EQ(lost.error().hint, "this machine has 7 GPUs, gpu:0, gpu:1, gpu:2, gpu:4, gpu:5, gpu:6, gpu:7");
}

TEST_F(ContextTest, FileToGpuToGpuToFile) {
    const Bytes size = 9'000'001;
    const std::string source = make_file("source", size);
    auto a = context.allocate(Place::gpu(0), size);
    auto b = context.allocate(Place::gpu(5), size);
    ASSERT_TRUE(a) << a.error().to_string();
    ASSERT_TRUE(b);
    CopyOptions verify;
    verify.verify = true;
    auto loaded = context.copy(Buffer::file(source), a->buffer(), verify).wait();
    ASSERT_TRUE(loaded) << loaded.error().to_string();
    EXPECT_TRUE(loaded->verified);
    EXPECT_EQ(loaded->bytes, size);
    auto moved = context.copy(a->buffer(), b->buffer(), verify).wait();
    ASSERT_TRUE(moved) << moved.error().to_string();
    EXPECT_TRUE(moved->route->direct());
    auto stored = context.copy(b->buffer(), Buffer::file(path("target")), verify).wait();
    ASSERT_TRUE(stored) << stored.error().to_string();
    EXPECT_EQ(test::get(path("target")), test::get(source));
}

TEST_F(ContextTest, FileToFileAndRanges) {
    const std::string source = make_file("source", 100'000);
    ASSERT_TRUE(context.copy(Buffer::file(source), Buffer::file(path("copy"))).wait());
    EXPECT_EQ(test::get(path("copy")), test::get(source));
    // Bytes 10 to 1010 into the middle of the copy.
    auto done = context.copy(Buffer::file(source, 10, 1000), Buffer::file(path("copy"), 50'000, 1000)).wait();
    ASSERT_TRUE(done) << done.error().to_string();
    std::string expected = test::get(source);
    expected.replace(50'000, 1000, expected.substr(10, 1000));
    EXPECT_EQ(test::get(path("copy")), expected);
}

TEST_F(ContextTest, AnEmptyFileIsCopied) {
    make_file("empty", 0);
    auto done = context.copy(Buffer::file(path("empty")), Buffer::file(path("copy"))).wait();
    ASSERT_TRUE(done) << done.error().to_string();
    EXPECT_TRUE(fs::exists(path("copy")));
    EXPECT_EQ(fs::file_size(path("copy")), 0u);
}

TEST_F(ContextTest, AFileOntoItselfIsRefusedUnderEveryName) {
    const std::string source = make_file("source", 1000);
    fs::create_symlink(source, path("link"));
    fs::create_hard_link(source, path("hard"));
    for (const std::string& other : {source, path("link"), path("hard")}) {
        const auto done = context.copy(Buffer::file(source), Buffer::file(other)).wait();
        ASSERT_FALSE(done) << other;
        EXPECT_EQ(done.error().code, ErrorCode::invalid_argument);
    }
    EXPECT_EQ(test::get(source), test::text_of(1000, 1000));
}

TEST_F(ContextTest, AFailedCopyLeavesTheOldFile) {
    const std::string target = make_file("target", 100);
    const std::string before = test::get(target);
    auto gpu = context.allocate(Place::gpu(0), 1_MiB);
    CopyOptions options;
    options.require = Require::direct;  // no direct path from a GPU to a file
    const auto done = context.copy(gpu->buffer(), Buffer::file(target), options).wait();
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().code, ErrorCode::path_unavailable);
    EXPECT_EQ(test::get(target), before);
    auto cancelled = context.copy(gpu->buffer(), Buffer::file(target));
    cancelled.cancel();
    if (!cancelled.wait()) {
        EXPECT_EQ(test::get(target), before);
    }
    EXPECT_EQ(std::distance(fs::directory_iterator(directory), {}), 1);
}

// It is over before it could be waited for, and tells what any other tells.
TEST_F(ContextTest, ASmallCopyWithinHostMemory) {
    for (const Bytes size : {Bytes{1}, 4_KiB, 64_KiB, 64_KiB + 1}) {
        const std::string bytes = test::text_of(size);
        std::string target(size + 1, 'x');
        const Buffer from = Buffer::host(bytes.data(), size), to = Buffer::host(target.data(), size);
        for (const bool verify : {false, true}) {
            CopyOptions options;
            options.verify = verify;
            auto transfer = context.copy(from, to, options);
            const auto done = transfer.wait();
            ASSERT_TRUE(done) << done.error().to_string();
            EXPECT_EQ(target, bytes + 'x');
            EXPECT_EQ(transfer.bytes_done(), size);
            EXPECT_EQ(transfer.bytes_total(), size);
            EXPECT_EQ(done->bytes, size);
            EXPECT_GT(done->seconds, 0);
            EXPECT_EQ(done->route->to_string(), context.route(from, to)->to_string());
            EXPECT_EQ(done->lane_bytes, std::vector<Bytes>{size});
            EXPECT_EQ(done->lane_failures, std::vector<std::string>{""});
            EXPECT_EQ(done->verified, verify);
            EXPECT_TRUE(done->notes.empty());
            target.assign(size + 1, 'x');
        }
    }
    std::string memory(4096, 'x');
    const auto refused = [&](const Buffer& from, const Buffer& to, CopyOptions options = {}) {
        const auto done = context.copy(from, to, options).wait();
        EXPECT_FALSE(done);
        return done ? std::string() : done.error().message;
    };
    const Buffer half = Buffer::host(memory.data(), 2048), other = Buffer::host(memory.data() + 2048, 2048);
    EXPECT_EQ(refused(half, Buffer::host(memory.data() + 1, 2048)), "source and target overlap");
    EXPECT_EQ(refused(half, Buffer::host(memory.data() + 2048, 100)),
              "the source has 2048 bytes and the target 100");
    EXPECT_EQ(refused(half, Buffer::host(static_cast<const char*>(memory.data()) + 2048, 2048)),
              "the target is read-only");
    EXPECT_EQ(refused(half, Buffer::memory(Place::host(99), memory.data() + 2048, 2048)),
              "host:99 does not exist");
    CopyOptions kernel;
    kernel.prefer = Prefer::kernel;
    const auto wished = context.copy(half, other, kernel).wait();
    ASSERT_TRUE(wished);
    EXPECT_EQ(wished->notes.size(), 1u) << "a wish that cannot be met is noted";
}

TEST_F(ContextTest, PageableAndPinnedHostMemory) {
    const std::string bytes = test::text_of(5'000'003);
    auto gpu = context.allocate(Place::gpu(3), bytes.size());
    auto pinned = context.allocate(Place::host(), bytes.size());
    ASSERT_EQ(pinned->kind(), MemoryKind::pinned);
    auto staged = context.copy(Buffer::host(bytes.data(), bytes.size()), gpu->buffer()).wait();
    ASSERT_TRUE(staged) << staged.error().to_string();
    EXPECT_FALSE(staged->route->direct());
    auto direct = context.copy(gpu->buffer(), pinned->buffer()).wait();
    ASSERT_TRUE(direct) << direct.error().to_string();
    EXPECT_TRUE(direct->route->direct());
    EXPECT_EQ(std::memcmp(pinned->address(), bytes.data(), bytes.size()), 0);
}

TEST_F(ContextTest, GpuMemoryOfAnotherGpuIsFoundOut) {
    auto gpu = context.allocate(Place::gpu(3), 4096);
    std::vector<char> memory(4096);
    const auto done =
        context.copy(Buffer::gpu(2, gpu->address(), 4096), Buffer::host(memory.data(), 4096)).wait();
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().code, ErrorCode::invalid_argument) << done.error().to_string();
}

TEST_F(ContextTest, ATransferDroppedHalfWayIsCancelledCleanly) {
    auto gpu = context.allocate(Place::gpu(0), 64_MiB);
    { auto transfer = context.copy(gpu->buffer(), Buffer::file(path("target"))); }
    // Nothing is in flight any more, and no half file has the name.
    if (fs::exists(path("target"))) {
        EXPECT_EQ(fs::file_size(path("target")), 64_MiB);
    }
}

TEST_F(ContextTest, TheLongestWaitIsAWait) {
    auto gpu = context.allocate(Place::gpu(0), 1_MiB);
    std::vector<char> memory(1_MiB, 7);
    auto transfer = context.copy(Buffer::host(memory.data(), memory.size()), gpu->buffer());
    EXPECT_TRUE(transfer.wait_for(std::chrono::milliseconds::max()));
}

TEST_F(ContextTest, AllocationsAndTransfersOutliveTheContext) {
    auto other = *Context::open({"dgx-h100"});
    auto gpu = std::make_unique<Result<Allocation>>(other.allocate(Place::gpu(0), 1_MiB));
    std::vector<char> memory(1_MiB, 7);
    auto transfer =
        std::make_unique<Transfer>(other.copy(Buffer::host(memory.data(), 1_MiB), (*gpu)->buffer()));
    { const Context dropped = std::move(other); }
    EXPECT_TRUE(transfer->wait());
}

TEST_F(ContextTest, ManyThreadsManyCopies) {
    std::vector<std::thread> threads;
    std::atomic<int> good{0};
    for (int t = 0; t < 6; ++t)
        threads.emplace_back([&, t] {
            auto gpu = context.allocate(Place::gpu(t), 1_MiB);
            const std::string bytes = test::text_of(1_MiB - t);
            std::string back(bytes.size(), '\0');
            const Buffer there = gpu->buffer().slice(0, bytes.size());
            for (int round = 0; round < 10; ++round) {
                if (!context.copy(Buffer::host(bytes.data(), bytes.size()), there).wait()) return;
                if (!context.copy(there, Buffer::host(back.data(), back.size())).wait()) return;
                good += back == bytes ? 1 : 0;
                back.assign(bytes.size(), '\0');
            }
        });
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(good, 60);
}

// Four GPUs in a row: 0 reaches 2 through its neighbour, and 3 through the host only.
TEST_F(ContextTest, GpusWithoutALinkAreReachedThroughANeighbourOrTheHost) {
    Topology::Parts parts;
    parts.name = "row";
    parts.devices.push_back({DeviceKind::cpu, 0, "cpu:0", "", "", 0, 0});
    for (DeviceId i = 1; i <= 4; ++i) {
        const int gpu = static_cast<int>(i) - 1;
        parts.devices.push_back({DeviceKind::gpu, gpu, "gpu:" + std::to_string(gpu), "", "", -1, 1_GiB});
        parts.links.push_back({0, i, LinkKind::pcie, 16, 63, 0.5});
        if (i > 1) parts.links.push_back({i - 1, i, LinkKind::nvlink, 4, 100, 0.3});
    }
    std::ofstream(path("row.json")) << Topology::create(std::move(parts))->to_json();
    const Context row = *Context::open({path("row.json")});
    const std::string bytes = test::text_of(9'000'001);
    for (const auto& [target, stop] : {std::pair{2, Place::gpu(1)}, std::pair{3, Place::host()}}) {
        auto from = row.allocate(Place::gpu(0), bytes.size());
        auto to = row.allocate(Place::gpu(target), bytes.size());
        ASSERT_TRUE(row.copy(Buffer::host(bytes.data(), bytes.size()), from->buffer()).wait());
        const auto done = row.copy(from->buffer(), to->buffer()).wait();
        ASSERT_TRUE(done) << done.error().to_string();
        EXPECT_EQ(done->route->lanes[0].hops[0].to, stop) << done->explain();
        std::string back(bytes.size(), '\0');
        ASSERT_TRUE(row.copy(to->buffer(), Buffer::host(back.data(), back.size())).wait());
        EXPECT_EQ(back, bytes);
    }
}

TEST_F(ContextTest, ARouteSaysWhichFileEngineItTakesAndWhy) {
    const std::string source = make_file("source", 1000);
    ::setenv("SIDESTEP_FILE_IO", "threads", 1);
    const auto threads = Context::open({"dgx-h100"});
    ::unsetenv("SIDESTEP_FILE_IO");
    ASSERT_TRUE(threads);
    const auto route = threads->route(Place::file(source), Place::host(), 1000);
    ASSERT_TRUE(route) << route.error().to_string();
    EXPECT_NE(route->to_string().find("read through threads, as asked for"), std::string::npos)
        << route->to_string();
}

TEST_F(ContextTest, OpenNamesWhatIsWrong) {
    EXPECT_EQ(Context::open({"dgx-h1000"}).error().code, ErrorCode::not_found);
    EXPECT_EQ(Context::open({"/nowhere/machine.json"}).error().code, ErrorCode::not_found);
    ASSERT_TRUE(Context::open({"live"}));
}

TEST_F(ContextTest, BackendsSayWhetherTheyWork) {
    bool absent = false;
    for (const BackendStatus& status : context.backends()) {
        EXPECT_FALSE(status.reason.empty()) << status.name;
        absent |= status.name == "cufile" && !status.usable;
    }
    EXPECT_TRUE(absent);
    const auto route = context.route(Place::file("/nowhere/weights.bin"), Place::gpu(0), 1_MiB);
    ASSERT_TRUE(route) << route.error().to_string();
    EXPECT_NE(route->to_string().find("gpu:0 by cufile direct storage"), std::string::npos)
        << route->to_string();
}

TEST_F(ContextTest, PointersOfUnknownKindAreLocated) {
    auto gpu = context.allocate(Place::gpu(6), 4096);
    const auto found = cuda::buffer(context, static_cast<char*>(gpu->address()) + 16, 64);
    ASSERT_TRUE(found) << found.error().to_string();
    EXPECT_EQ(found->place(), Place::gpu(6));
    int local = 0;
    EXPECT_EQ(cuda::buffer(context, &local, sizeof local)->place(), Place::host());
}

// PCIe gives peers what it gives the host, so the switch between two GPUs beats the way through host memory.
TEST_F(ContextTest, AMissingFileIsSaidToBeMissing) {
    char memory[3];
    for (const fs::path& path : {fs::path("/nowhere/at/all"), directory / "absent"}) {
        const auto done = context.copy(Buffer::file(path.string()), Buffer::host(memory, 3)).wait();
        ASSERT_FALSE(done.ok());
        EXPECT_EQ(done.error().code, ErrorCode::not_found) << done.error().to_string();
    }
}

// Another process holds the folder of names: the call ends at its deadline, and the name that it gets later is withdrawn.
TEST_F(ContextTest, PublishKeepsItsDeadline) {
    const auto ours = Context::open({.machine = "dgx-h100", .peer_folder = directory});
    auto memory = ours->allocate(Place::gpu(0), 4096);
    ASSERT_TRUE(ours && memory);
    const auto publish = [&](std::chrono::milliseconds deadline) {
        return ours->publish("kv", *memory, {.deadline = deadline});
    };
    for (const auto wrong : {std::chrono::milliseconds(-1), longest_limit + std::chrono::milliseconds(1)})
        EXPECT_EQ(publish(wrong).error().code, ErrorCode::invalid_argument);
    const int held = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ASSERT_EQ(::flock(held, LOCK_EX), 0);
    const auto begin = std::chrono::steady_clock::now();
    const auto late = publish(std::chrono::milliseconds(50));
    ASSERT_FALSE(late.ok());
    EXPECT_EQ(late.error().code, ErrorCode::timed_out) << late.error().to_string();
    EXPECT_LT(std::chrono::steady_clock::now() - begin,
              std::chrono::seconds(3));  // the folder is waited for for 5
    ::close(held);
    // As long as the late one has the name it is taken.
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    auto published = publish(longest_limit);
    while (!published && std::chrono::steady_clock::now() < until) published = publish(longest_limit);
    EXPECT_TRUE(published) << published.error().to_string();
}

TEST(Routes, PeersBelowOneSwitchAvoidTheHost) {
    const auto box = Context::open({"pcie-4l40s", ""});
    ASSERT_TRUE(box.ok());
    const auto route = box->route(Place::gpu(0), Place::gpu(1), 256_MiB);
    ASSERT_TRUE(route.ok());
    EXPECT_TRUE(route->direct()) << route->to_string();
}

}  // namespace
}  // namespace sidestep
