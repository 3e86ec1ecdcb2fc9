// Copies through the engine with a cuFile that is direct, that only says so, and that fails.
#include <gtest/gtest.h>

#include <dlfcn.h>
#include <fcntl.h>

#include <cstring>

#include "backends/file/file_backend.hpp"
#include "backends/host/host_backend.hpp"
#include "driver/files.hpp"
#include "driver/page_cache.hpp"
#include "tests/contents.hpp"
#include "tests/fake_cufile/stand_in.hpp"
#include "transfer/engine.hpp"

namespace sidestep::fake_cufile {
namespace {

constexpr Bytes size = 24_MiB;

// A machine with the file, host, cuda and cufile backends, as backends/builtin.cpp has it.
class Copies : public testing::Test {
protected:
    void SetUp() override {
        if (const std::string why = missing(); !why.empty()) GTEST_SKIP() << why;
        topology_ = std::make_unique<Topology>(Topology::live().value());
    }

    // Nothing stays registered, whatever went wrong.
    void TearDown() override {
        if (IsSkipped()) return;
        engine_.reset();
        EXPECT_EQ(asked("fake_cufile_files"), 0);
        EXPECT_EQ(asked("fake_cufile_buffers"), 0);
    }
    static int asked(const char* question) {
        void* const library = ::dlopen(SIDESTEP_FAKE_CUFILE, RTLD_NOW | RTLD_NOLOAD);
        return library == nullptr ? -1 : reinterpret_cast<int (*)()>(::dlsym(library, question))();
    }

    // The words hold for the whole test, from opening the driver on.
    void open(const std::string& words) {
        faults_.reset();
        faults_ = std::make_unique<Faults>(words);
        registry_ = std::make_unique<backend::Registry>();
        registry_->add(backends::host::create({.threads = 2}), *topology_);
        registry_->add(backends::file::create({.io = base::FileIo::threads}), *topology_);
        registry_->add(backends::cuda::create(), *topology_);
        registry_->add(make(), *topology_);
        engine_ = std::make_unique<transfer::Engine>(*topology_, *registry_);
        memory_ =
            registry_->find("cuda")->allocator()->allocate(Place::gpu(0), size, MemoryKind::device).value();
        std::memset(memory_.address(), 0x11, size);
    }
    backend::Support support() const { return registry_->offers().back().support; }

    std::string path(const std::string& name) const { return tree_.root() + "/" + name; }
    void write_file(const std::string& name, const std::string& text) const { test::put(path(name), text); }
    std::string read_file(const std::string& name) const { return test::get(path(name)); }
    std::string memory() const { return std::string(static_cast<const char*>(memory_.address()), size); }

    // The files were just written, so the page cache holds them.
    static CopyOptions around_cache() {
        CopyOptions options;
        options.page_cache = PageCache::bypass;
        return options;
    }
    Result<Receipt> copy(const Buffer& from, const Buffer& to, const CopyOptions& options = around_cache()) {
        auto job = engine_->submit(from, to, options, nullptr);
        engine_->wait(job, {});
        return job->result();
    }
    static std::string words(const Receipt& receipt) { return receipt.explain(); }

    MachineTree tree_;
    std::unique_ptr<Faults> faults_;
    std::unique_ptr<Topology> topology_;
    std::unique_ptr<backend::Registry> registry_;
    Allocation memory_;
    std::unique_ptr<transfer::Engine> engine_;
};

TEST_F(Copies, GoDirectlyWhereTheCountersProveIt) {
    for (const char* way : {"nvfs", "p2p", "p2p,1.19", "nvfs,short"}) {
        SCOPED_TRACE(way);
        engine_.reset();
        memory_ = {};
        open(way);
        ASSERT_TRUE(support().usable) << support().reason;
        const std::string bytes = test::text_of(size, 1);
        write_file("source", bytes);
        const auto read = copy(Buffer::file(path("source")), memory_.buffer());
        ASSERT_TRUE(read) << read.error().to_string();
        EXPECT_TRUE(memory() == bytes);
        EXPECT_EQ(read->route->lanes[0].hops.size(), 1u) << words(*read);
        EXPECT_EQ(read->storage.gpu_direct, size);
        EXPECT_EQ(read->storage.total(), size);
        EXPECT_TRUE(read->notes.empty()) << read->notes[0];
        const auto written = copy(memory_.buffer(), Buffer::file(path("target")));
        ASSERT_TRUE(written) << written.error().to_string();
        EXPECT_TRUE(read_file("target") == bytes);
        EXPECT_EQ(written->storage.gpu_direct, size);
    }
}

TEST_F(Copies, WhatIsNoWholeBlockGoesThroughHostMemoryAndSaysSo) {
    open("nvfs");
    const std::string bytes = test::text_of(size, 2);
    write_file("source", bytes);
    const Bytes part = 1_MiB + 5000;
    const auto read = copy(Buffer::file(path("source"), 1000, part), memory_.buffer().slice(7, part));
    ASSERT_TRUE(read) << read.error().to_string();
    EXPECT_TRUE(memory().substr(7, part) == bytes.substr(1000, part));
    EXPECT_EQ(memory()[6], 0x11);
    EXPECT_EQ(memory()[7 + part], 0x11);
    // 3096 bytes to the first whole block, and what is left after the last.
    const Bytes tail = (part - 3096) % 4096;
    EXPECT_EQ(read->storage.page_cache, 3096 + tail);
    EXPECT_EQ(read->storage.gpu_direct, part - 3096 - tail);
    ASSERT_EQ(read->notes.size(), 1u);
    EXPECT_NE(read->notes[0].find("only whole blocks of 4 KiB go directly"), std::string::npos)
        << read->notes[0];
    std::string expected = bytes;
    std::memcpy(expected.data() + 5, memory().data() + 100, 70'000);
    const auto written = copy(memory_.buffer().slice(100, 70'000), Buffer::file(path("source"), 5, 70'000));
    ASSERT_TRUE(written) << written.error().to_string();
    EXPECT_TRUE(read_file("source") == expected);
}

// Everything succeeds, and nothing of it is direct: the counters tell, and the staged path carries the bytes.
TEST_F(Copies, SilentCompatibilityModeIsRefusedWithTheReason) {
    open("posix");
    ASSERT_TRUE(support().usable) << support().reason;
    const std::string bytes = test::text_of(size, 3);
    write_file("source", bytes);
    const auto read = copy(Buffer::file(path("source")), memory_.buffer());
    ASSERT_TRUE(read) << read.error().to_string();
    EXPECT_TRUE(memory() == bytes);
    EXPECT_EQ(read->storage.gpu_direct, 0u);
    EXPECT_EQ(read->route->lanes[0].hops.size(), 2u) << words(*read);
    const std::string reason = "through host memory (compatibility mode)";
    EXPECT_NE(words(*read).find(reason), std::string::npos) << words(*read);

    // The same answer without a copy, and an error where a direct path is required.
    const auto route = engine_->route(Place::file(path("source")), Place::gpu(0), size, around_cache());
    ASSERT_TRUE(route) << route.error().to_string();
    EXPECT_NE(route->to_string().find(reason), std::string::npos) << route->to_string();
    CopyOptions direct;
    direct.require = Require::direct;
    const auto required = copy(Buffer::file(path("source")), memory_.buffer(), direct);
    ASSERT_FALSE(required);
    EXPECT_EQ(required.error().code, ErrorCode::path_unavailable);
    EXPECT_NE(required.error().message.find(reason), std::string::npos) << required.error().to_string();

    const auto written = copy(memory_.buffer(), Buffer::file(path("target")));
    ASSERT_TRUE(written) << written.error().to_string();
    EXPECT_TRUE(read_file("target") == bytes);
    EXPECT_EQ(written->storage.gpu_direct, 0u);
    EXPECT_NE(words(*written).find(reason), std::string::npos) << words(*written);
}

TEST_F(Copies, RefusalsAndTheirReasons) {
    const std::pair<const char*, const char*> cases[] = {
        {"file=5027", "5027 HANDLE_NOT_REGISTERED"},
        {"file=5030", "5030 INTERNAL_ERROR"},
        {"silent", "counted it neither as P2PDMA nor as nvidia-fs"},
        {"eio", "Input/output error"},
        {"refuse", "5034 IO_DISABLED"},
        {"wrong", "is not the one in the file"},
        {"tiny", "moved 1000 bytes only"},
    };
    const std::string bytes = test::text_of(size, 4);
    write_file("source", bytes);
    for (const auto& [words_of_case, reason] : cases) {
        SCOPED_TRACE(words_of_case);
        engine_.reset();
        memory_ = {};
        open(words_of_case);
        const auto read = copy(Buffer::file(path("source")), memory_.buffer());
        ASSERT_TRUE(read) << read.error().to_string();
        EXPECT_TRUE(memory() == bytes);
        EXPECT_EQ(read->storage.gpu_direct, 0u);
        EXPECT_NE(words(*read).find(reason), std::string::npos) << words(*read);
    }
}

// The path was direct when it was tried, and is not when it is used.
TEST_F(Copies, BytesThatTurnOutNotToBeDirectCountAsPageCache) {
    open("nvfs");
    const std::string bytes = test::text_of(size, 5);
    write_file("source", bytes);
    ASSERT_TRUE(copy(Buffer::file(path("source")), memory_.buffer()));
    ::setenv("FAKE_CUFILE", "silent", 1);
    const auto uncounted = copy(Buffer::file(path("source")), memory_.buffer());
    ASSERT_TRUE(uncounted);
    EXPECT_EQ(uncounted->storage.gpu_direct, 0u);
    ::setenv("FAKE_CUFILE", "posix", 1);
    const auto read = copy(Buffer::file(path("source")), memory_.buffer());
    ASSERT_TRUE(read) << read.error().to_string();
    EXPECT_TRUE(memory() == bytes);
    EXPECT_EQ(read->storage.gpu_direct, 0u);
    EXPECT_EQ(read->storage.page_cache, size);
    ASSERT_FALSE(read->notes.empty());
    EXPECT_NE(read->notes[0].find("cuFile's counters do not show"), std::string::npos) << read->notes[0];
}

TEST_F(Copies, ErrorsNameTheFileAndTheBytes) {
    open("nvfs");
    write_file("source", test::text_of(size, 6));
    ASSERT_TRUE(copy(Buffer::file(path("source")), memory_.buffer()));
    ASSERT_TRUE(copy(memory_.buffer(), Buffer::file(path("first"))));
    ::setenv("FAKE_CUFILE", "eio", 1);
    const auto failed = copy(Buffer::file(path("source"), 4_MiB, 4_MiB), memory_.buffer().slice(0, 4_MiB));
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().code, ErrorCode::io_error) << failed.error().to_string();
    EXPECT_NE(failed.error().where.find("source, bytes 4194304 to 8388608"), std::string::npos)
        << failed.error().to_string();
    // A whole file that failed leaves nothing behind.
    const auto written = copy(memory_.buffer(), Buffer::file(path("target")));
    EXPECT_FALSE(written);
    EXPECT_FALSE(std::filesystem::exists(path("target")));
    int left = 0;
    for (const auto& entry : std::filesystem::directory_iterator(tree_.root()))
        left += entry.path().filename() != "source" && entry.path().filename() != "first";
    EXPECT_EQ(left, 0) << "a temporary file stayed";
}

// Two copies into one memory: what the first has mapped stays while the second uses it.
TEST_F(Copies, TwoAtATimeShareTheMappedMemory) {
    open("nvfs");
    const std::string bytes = test::text_of(size, 12);
    write_file("a", bytes);
    write_file("b", bytes);
    auto first = engine_->submit(Buffer::file(path("a")), memory_.buffer(), around_cache(), nullptr);
    auto second = engine_->submit(Buffer::file(path("b")), memory_.buffer(), around_cache(), nullptr);
    engine_->wait(first, {});
    engine_->wait(second, {});
    for (const auto& job : {first, second}) {
        ASSERT_TRUE(job->result()) << job->result().error().to_string();
        EXPECT_EQ(job->result()->storage.gpu_direct, size);
        EXPECT_TRUE(job->result()->notes.empty()) << job->result()->notes[0];
    }
    EXPECT_TRUE(memory() == bytes);
}

// A file system may take any time to close a file, so where there is a deadline nobody waits for that. But the memory may be
// freed as soon as the copy has ended.
TEST_F(Copies, NoMemoryStaysMappedWhereFilesAreClosedLater) {
    open("nvfs");
    write_file("source", test::text_of(size, 14));
    CopyOptions options = around_cache();
    options.deadline = std::chrono::minutes(1);
    for (const bool write : {false, true})
        for (const char* how : {"nvfs,unmap_ms=200", "nvfs,unmap_ms=200,eio"}) {
            const auto run = [&] {
                return write ? copy(memory_.buffer(), Buffer::file(path("target")), options)
                             : copy(Buffer::file(path("source")), memory_.buffer(), options);
            };
            ASSERT_TRUE(run());  // the way is tried out
            ::setenv("FAKE_CUFILE", how, 1);
            EXPECT_EQ(run().ok(), how == std::string("nvfs,unmap_ms=200"));
            EXPECT_EQ(asked("fake_cufile_buffers"), 0) << how << write;
            ::setenv("FAKE_CUFILE", "nvfs", 1);
        }
}

TEST_F(Copies, MemoryThatCufileWouldNotMapIsSaid) {
    open("nvfs,buffer=5016");
    const std::string bytes = test::text_of(size, 7);
    write_file("source", bytes);
    const auto read = copy(Buffer::file(path("source")), memory_.buffer());
    ASSERT_TRUE(read) << read.error().to_string();
    EXPECT_TRUE(memory() == bytes);
    EXPECT_EQ(read->storage.gpu_direct, size);
    ASSERT_EQ(read->notes.size(), 1u);
    EXPECT_NE(read->notes[0].find("would not map the GPU memory"), std::string::npos) << read->notes[0];
}

TEST_F(Copies, WishesThatRuleTheDirectPathOut) {
    open("nvfs");
    const std::string bytes = test::text_of(size, 8);
    write_file("source", bytes);
    CopyOptions cached;
    cached.page_cache = PageCache::use;
    const auto read = copy(Buffer::file(path("source")), memory_.buffer(), cached);
    ASSERT_TRUE(read);
    EXPECT_EQ(read->storage.gpu_direct, 0u);
    EXPECT_NE(words(*read).find("the page cache is to be used"), std::string::npos) << words(*read);
    CopyOptions verified = around_cache();
    verified.verify = true;
    const auto written = copy(memory_.buffer(), Buffer::file(path("target")), verified);
    ASSERT_TRUE(written) << written.error().to_string();
    EXPECT_TRUE(written->verified);
    EXPECT_NE(words(*written).find("verified through the file backend"), std::string::npos)
        << words(*written);
    const auto direct_and_verified = copy(Buffer::file(path("source")), memory_.buffer(), verified);
    ASSERT_TRUE(direct_and_verified) << direct_and_verified.error().to_string();
    EXPECT_TRUE(direct_and_verified->verified);
    EXPECT_EQ(direct_and_verified->storage.gpu_direct, size);
}

// What lies in the page cache is quicker to read from there, unless the caller insists.
TEST_F(Copies, AWarmFileIsReadFromThePageCache) {
    open("nvfs");
    write_file("source", test::text_of(size, 11));
    const driver::Fd fd = driver::open_file(path("source"), O_RDONLY).value();
    const auto probe = driver::cache_probe_for(fd, driver::best_cache_probe());
    const auto cached = driver::cached_part(probe, fd, 0, size);
    // Where it cannot be told what the page cache holds, nothing speaks against the direct path.
    const bool told = probe != driver::CacheProbe::nowait && cached && cached->bytes >= size / 2;
    CopyOptions options;
    const auto warm = copy(Buffer::file(path("source")), memory_.buffer(), options);
    ASSERT_TRUE(warm) << warm.error().to_string();
    EXPECT_EQ(warm->storage.gpu_direct, told ? 0u : size);
    EXPECT_EQ(words(*warm).find("the page cache holds most of it") != std::string::npos, told)
        << words(*warm);
    options.require = Require::direct;
    const auto direct = copy(Buffer::file(path("source")), memory_.buffer(), options);
    ASSERT_TRUE(direct) << direct.error().to_string();
    EXPECT_EQ(direct->storage.gpu_direct, size);
    EXPECT_EQ(copy(Buffer::file(path("source")), memory_.buffer())->storage.gpu_direct, size);
}

TEST_F(Copies, PoolMemoryAndSmallFilesAreStaged) {
    open("nvfs");
    write_file("small", test::text_of(4095, 9));
    const auto small = copy(Buffer::file(path("small")), memory_.buffer().slice(0, 4095));
    ASSERT_TRUE(small) << small.error().to_string();
    EXPECT_NE(words(*small).find("only whole blocks of 4 KiB go directly"), std::string::npos)
        << words(*small);
    auto pool =
        registry_->find("cuda")->allocator()->allocate(Place::gpu(0), 1_MiB, MemoryKind::pool).value();
    write_file("source", test::text_of(1_MiB, 10));
    const auto into_pool = copy(Buffer::file(path("source")), pool.buffer());
    ASSERT_TRUE(into_pool) << into_pool.error().to_string();
    EXPECT_NE(words(*into_pool).find("cannot write pool memory"), std::string::npos) << words(*into_pool);
}

TEST_F(Copies, TheLibraryMayBeUnusable) {
    open("open=5033");
    EXPECT_FALSE(support().usable);
    EXPECT_EQ(support().reason, "libcufile 1.15: cuFileDriverOpen failed: 5033 NVFS_SETUP_ERROR");
    EXPECT_FALSE(support().remedy.empty());
    engine_.reset();
    open("overrun");
    EXPECT_FALSE(support().usable);
    EXPECT_NE(support().reason.find("in a way that is not known here"), std::string::npos)
        << support().reason;
    MachineTree tree;
    tree.driver();
    tree.nvidia_fs();
    const auto old =
        backends::cufile::create({.off = false, .root = tree.root(), .libraries = {SIDESTEP_FAKE_CUFILE_OLD}})
            ->probe(*topology_);
    EXPECT_FALSE(old.usable);
    EXPECT_NE(old.reason.find("cannot show which way bytes take"), std::string::npos) << old.reason;
}

}  // namespace
}  // namespace sidestep::fake_cufile
