// GPU memory of another process: this program once more, started as a child that publishes. CUDA does not
// survive fork(), so the child is a fresh program (posix_spawn).
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <map>
#include <sstream>

#include <fmt/format.h>

#include <sidestep/context.hpp>

#include "tests/gpu/raw_memory.hpp"

extern char** environ;

namespace sidestep::gpu_tests::ipc {
namespace {

constexpr int answers = 3;  // the child's descriptor for what it answers; GoogleTest talks on the others
constexpr const char* child_mode = "--ipc-child";
constexpr const char* folder_variable = "SIDESTEP_PEER_FOLDER";

Allocation memory_of(const std::string& kind, int gpu, Bytes bytes) {
    if (kind == "pieces") return map_pieces(gpu, bytes, 2_MiB, Pieces::exportable);
    if (kind == "vmm")
        return std::move(
                   Machine::get().backend().allocator()->allocate(Place::gpu(gpu), bytes, MemoryKind::vmm))
            .value();
    return raw_memory(Raw::device, gpu, bytes);
}

// The child: publish NAME KIND GPU BYTES FROM SIZE SEED, check NAME SEED, withdraw NAME.
class Child {
public:
    std::string obey(const std::string& line) {
        std::istringstream words(line);
        std::string verb;
        std::string name;
        words >> verb >> name;
        if (verb == "publish") return publish(name, words);
        if (verb == "withdraw") return held_.erase(name) == 1 ? "ok" : "no such name";
        unsigned seed = 0;
        words >> seed;
        expect_pattern(held_.at(name).buffer, seed);
        return testing::Test::HasFailure() ? "wrong bytes" : "ok";
    }

private:
    struct Held {
        Allocation memory;
        Buffer buffer;
        Publication publication;
    };

    std::string publish(const std::string& name, std::istringstream& words) {
        std::string kind;
        int gpu = 0;
        Bytes bytes = 0;
        Bytes from = 0;
        Bytes size = 0;
        unsigned seed = 0;
        words >> kind >> gpu >> bytes >> from >> size >> seed;
        Held held{memory_of(kind, gpu, bytes), {}, {}};
        held.buffer = held.memory.buffer().slice(from, size);
        fill(held.buffer, seed);
        auto publication = context_.publish(name, held.buffer);
        if (!publication) return publication.error().to_string();
        held.publication = std::move(*publication);
        held_.insert_or_assign(name, std::move(held));
        return "ok";
    }

    Context context_ = std::move(Context::open({"live"})).value();
    std::map<std::string, Held> held_;
};

}  // namespace

// What main() does as a child.
int serve_as_child() {
    Child child;
    for (std::string line; std::getline(std::cin, line);) {
        const std::string answer = fmt::format("{}\n", child.obey(line));
        (void)!::write(answers, answer.data(), answer.size());
    }
    return 0;
}

namespace {

class Ipc : public GpuTest {
protected:
    void SetUp() override {
        GpuTest::SetUp();
        if (IsSkipped()) return;
        std::string name = "/tmp/sidestep-ipc-XXXXXX";
        ASSERT_NE(::mkdtemp(name.data()), nullptr);
        folder_ = name;
        ContextOptions options;
        options.machine = "live";
        options.peer_folder = folder_;
        auto opened = Context::open(options);
        ASSERT_TRUE(opened) << opened.error().to_string();
        context_.emplace(std::move(*opened));
    }
    void TearDown() override {
        kill_child();
        context_.reset();
        if (!folder_.empty()) std::filesystem::remove_all(folder_);
    }

    // `visible`: CUDA_VISIBLE_DEVICES of the child, empty: as here.
    void start_child(const std::string& visible = "") {
        int commands[2] = {-1, -1};
        int replies[2] = {-1, -1};
        ASSERT_EQ(::pipe2(commands, O_CLOEXEC), 0);
        ASSERT_EQ(::pipe2(replies, O_CLOEXEC), 0);
        std::vector<std::string> texts;
        for (char** entry = environ; *entry != nullptr; ++entry) texts.emplace_back(*entry);
        texts.push_back(fmt::format("{}={}", folder_variable, folder_));
        if (!visible.empty()) texts.push_back(fmt::format("CUDA_VISIBLE_DEVICES={}", visible));
        std::vector<char*> environment;
        for (std::string& text : texts) environment.push_back(text.data());
        environment.push_back(nullptr);
        posix_spawn_file_actions_t actions;
        ::posix_spawn_file_actions_init(&actions);
        ::posix_spawn_file_actions_adddup2(&actions, commands[0], 0);
        ::posix_spawn_file_actions_adddup2(&actions, replies[1], answers);
        std::string program = "/proc/self/exe";
        std::string mode = child_mode;
        char* arguments[] = {program.data(), mode.data(), nullptr};
        ASSERT_EQ(::posix_spawn(&child_, program.c_str(), &actions, nullptr, arguments, environment.data()),
                  0);
        ::posix_spawn_file_actions_destroy(&actions);
        ::close(commands[0]);
        ::close(replies[1]);
        to_ = commands[1];
        from_ = replies[0];
    }
    std::string tell(const std::string& command) {
        const std::string line = fmt::format("{}\n", command);
        if (::write(to_, line.data(), line.size()) < 0) return "";
        std::string reply;
        for (char next = 0;;) {
            pollfd entry{from_, POLLIN, 0};
            if (::poll(&entry, 1, 60'000) != 1 || ::read(from_, &next, 1) != 1) return "the child is silent";
            if (next == '\n') return reply;
            reply += next;
        }
    }
    void kill_child() {
        if (child_ <= 0) return;
        ::kill(child_, SIGKILL);
        ::waitpid(child_, nullptr, 0);
        child_ = -1;
        ::close(to_);
        ::close(from_);
    }

    // Reads a published buffer into memory of a GPU here, and writes another pattern back.
    void exchange(const std::string& name, Bytes bytes, int gpu, unsigned seed,
                  Prefer prefer = Prefer::automatic) {
        const Allocation here = raw_memory(Raw::device, gpu, bytes);
        CopyOptions options;
        options.prefer = prefer;
        auto read = context_->copy(Buffer::shared(name), here.buffer(), options).wait();
        ASSERT_TRUE(read) << read.error().to_string();
        expect_pattern(here.buffer(), seed);
        fill(here.buffer(), seed + 1);
        auto written = context_->copy(here.buffer(), Buffer::shared(name), options).wait();
        ASSERT_TRUE(written) << written.error().to_string();
        EXPECT_EQ(tell(fmt::format("check {} {}", name, seed + 1)), "ok");
    }

    std::string folder_;
    std::optional<Context> context_;
    pid_t child_ = -1;
    int to_ = -1;
    int from_ = -1;
};

TEST_F(Ipc, MemoryOfEveryKindThatCanBeShared) {
    start_child();
    for (const char* kind : {"device", "vmm", "pieces"}) {
        SCOPED_TRACE(kind);
        ASSERT_EQ(tell(fmt::format("publish {} {} 0 {} 0 {} 7", kind, kind, 9_MiB, 9_MiB)), "ok");
        exchange(kind, 9_MiB, 0, 7);
        const Allocation pinned = raw_memory(Raw::host_alloc, 0, 9_MiB);
        auto read = context_->copy(Buffer::shared(kind), pinned.buffer()).wait();
        ASSERT_TRUE(read) << read.error().to_string();
        expect_pattern(pinned.buffer(), 8);
        EXPECT_EQ(tell(fmt::format("withdraw {}", kind)), "ok");
    }
}

TEST_F(Ipc, PartsOfAllocations) {
    start_child();
    for (const char* kind : {"device", "vmm", "pieces"}) {
        SCOPED_TRACE(kind);
        const Bytes from = 2_MiB + 4097;
        const Bytes size = 5_MiB + 3;
        ASSERT_EQ(tell(fmt::format("publish {} {} 0 {} {} {} 3", kind, kind, 16_MiB, from, size)), "ok");
        exchange(kind, size, 0, 3);
    }
}

TEST_F(Ipc, BetweenTwoGpusByEachEngine) {
    if (machine().gpus() < 2) GTEST_SKIP() << "needs two GPUs, this machine has one";
    start_child();
    for (const char* kind : {"device", "vmm", "pieces"}) {
        SCOPED_TRACE(kind);
        ASSERT_EQ(tell(fmt::format("publish {} {} 1 {} 0 {} 5", kind, kind, 32_MiB, 32_MiB)), "ok");
        exchange(kind, 32_MiB, 0, 5, Prefer::copy_engine);
        exchange(kind, 32_MiB, 0, 6, Prefer::kernel);
    }
}

TEST_F(Ipc, TheGpuIsFoundWhateverItsNumber) {
    if (machine().gpus() < 2) GTEST_SKIP() << "needs two GPUs, this machine has one";
    start_child("1");
    ASSERT_EQ(tell(fmt::format("publish kv device 1 {} 0 {} 5", 4_MiB, 4_MiB)), "ok");
    auto route = context_->route(Place::shared("kv"), Place::gpu(0), 4_MiB);
    ASSERT_TRUE(route) << route.error().to_string();
    EXPECT_EQ(route->lanes.at(0).hops.front().from, Place::gpu(1));
    exchange("kv", 4_MiB, 0, 5);
}

// An address that is freed and given out again must not be taken for the old memory.
TEST_F(Ipc, FreedAndAllocatedAgain) {
    start_child();
    for (unsigned round = 0; round < 5; ++round) {
        const unsigned seed = 10 * round + 1;
        ASSERT_EQ(tell(fmt::format("publish kv device 0 {} 0 {} {}", 4_MiB, 4_MiB, seed)), "ok");
        exchange("kv", 4_MiB, 0, seed);
        ASSERT_EQ(tell("withdraw kv"), "ok");
        auto gone = context_->route(Place::shared("kv"), Place::gpu(0), 4_MiB);
        ASSERT_FALSE(gone);
        EXPECT_EQ(gone.error().code, ErrorCode::not_found) << gone.error().to_string();
    }
}

TEST_F(Ipc, PublisherKilled) {
    start_child();
    ASSERT_EQ(tell(fmt::format("publish kv device 0 {} 0 {} 1", 4_MiB, 4_MiB)), "ok");
    exchange("kv", 4_MiB, 0, 1);
    kill_child();
    const Allocation here = raw_memory(Raw::device, 0, 4_MiB);
    auto done = context_->copy(Buffer::shared("kv"), here.buffer()).wait();
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().code, ErrorCode::not_found) << done.error().to_string();
}

TEST_F(Ipc, WithinOneProcessWithoutAMapping) {
    const Allocation memory = raw_memory(Raw::device, 0, 4_MiB);
    fill(memory.buffer(), 4);
    auto publication = context_->publish("own", memory.buffer());
    ASSERT_TRUE(publication) << publication.error().to_string();
    const Allocation target = raw_memory(Raw::device, 0, 4_MiB);
    auto done = context_->copy(Buffer::shared("own"), target.buffer()).wait();
    ASSERT_TRUE(done) << done.error().to_string();
    expect_pattern(target.buffer(), 4);
}

TEST_F(Ipc, WhatCannotBeSharedSaysWhatToDo) {
    const std::pair<Raw, const char*> refused[] = {{Raw::pool, "cudaMalloc"},
                                                   {Raw::vmm_pieces, "TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC"},
                                                   {Raw::managed, "MemoryKind::device"},
                                                   {Raw::host_alloc, "MemoryKind::pageable"},
                                                   {Raw::pageable, "Context::allocate"}};
    for (const auto& [raw, hint] : refused) {
        SCOPED_TRACE(to_string(raw));
        const Allocation memory = raw_memory(raw, 0, 4_MiB);
        auto published = context_->publish("kv", memory.buffer());
        ASSERT_FALSE(published);
        EXPECT_EQ(published.error().code, ErrorCode::unsupported) << published.error().to_string();
        EXPECT_NE(published.error().hint.find(hint), std::string::npos) << published.error().to_string();
    }
}

// Publishing a part moves all of an allocation to other pages, and a GPU goes on to reach those that were locked.
TEST_F(Ipc, HostMemoryWithALockedPartStaysWhereItIs) {
    const auto memory = context_->allocate(Place::host(), 8_MiB, MemoryKind::pageable);
    ASSERT_TRUE(memory) << memory.error().to_string();
    const Buffer locked = memory->buffer().slice(0, 1_MiB), other = memory->buffer().slice(4_MiB, 1_MiB);
    const auto gpu_sees_it_locked = [&locked] {
        const auto found = backend().describe(locked);
        return found && *found && (*found)->memory == MemoryKind::pinned;
    };
    const auto is_refused = [&](const char* by) {
        EXPECT_TRUE(gpu_sees_it_locked()) << by;
        const auto refused = context_->publish("kv", other);
        ASSERT_FALSE(refused) << by;
        EXPECT_EQ(refused.error().code, ErrorCode::unsupported) << refused.error().to_string();
    };
    {
        driver::ScopedCudaContext current(machine().context(0));
        expect_success(cuda().cuMemHostRegister(locked.address(), locked.size(), 0), "cuMemHostRegister");
        is_refused("hand");
        expect_success(cuda().cuMemHostUnregister(locked.address()), "cuMemHostUnregister");
        const auto another = Context::open({"live"});
        ASSERT_TRUE(another) << another.error().to_string();
        const auto held = another->pin(locked);
        ASSERT_TRUE(held) << held.error().to_string();
        is_refused("another Context");
    }
    {
        const auto held = context_->pin(locked);
        ASSERT_TRUE(held) << held.error().to_string();
        is_refused("this Context");
    }
    EXPECT_TRUE(gpu_sees_it_locked()) << "kept for the next pin";
    const auto whole = context_->publish("kv", memory->buffer());
    ASSERT_TRUE(whole) << whole.error().to_string();
    EXPECT_FALSE(gpu_sees_it_locked());
    // It does not move again.
    const auto held = context_->pin(locked);
    ASSERT_TRUE(held) << held.error().to_string();
    const auto again = context_->publish("kv2", other);
    EXPECT_TRUE(again) << again.error().to_string();
}

}  // namespace
}  // namespace sidestep::gpu_tests::ipc

// In place of GoogleTest's own, for the whole program.
int main(int count, char** arguments) {
    testing::InitGoogleTest(&count, arguments);
    if (count == 2 && std::string(arguments[1]) == "--ipc-child")
        return sidestep::gpu_tests::ipc::serve_as_child();
    return RUN_ALL_TESTS();
}
