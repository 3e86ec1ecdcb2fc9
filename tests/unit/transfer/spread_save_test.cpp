// Memories gathered into files: what the files hold, and when they get their names.
#include <gtest/gtest.h>

#include <thread>

#include "driver/files.hpp"
#include "spread_rig.hpp"
#include "transfer/spread_work.hpp"

namespace sidestep {
namespace {

using namespace std::chrono_literals;
using test::chunks_of;
using test::FakeFiles;
using test::SpreadRig;
using transfer::SpreadDirection;

// Tensors of two GPUs and headers in host memory, in files of which one is empty.
struct SaveRig : SpreadRig {
    explicit SaveRig(Setup setup = {.gpus = 2}) : SpreadRig(std::move(setup)) {
        spread.direction = SpreadDirection::to_file;
        add_gpus(2, 1_MiB);
        add_memory(Place::host(), 1000);
        for (std::size_t m = 0; m < memories.size(); ++m) {
            const std::string bytes = content(memories[m].size(), 100 + m);
            std::memcpy(memories[m].address(), bytes.data(), bytes.size());
        }
        target(0, {{2, 0, 100}, {0, 0, 300'000}, {1, 5, 200'001}});
        target(1, {{2, 100, 900}, {1, 500'000, 123}, {0, 300'000, 700'000}});
        target(2, {});
    }

    struct Part {
        std::uint32_t memory;
        Bytes offset;
        Bytes size;
    };
    void target(std::size_t number, const std::vector<Part>& parts) {
        Bytes at = 0;
        whole.emplace_back();
        for (const Part& part : parts) {
            row(number, at, part.size, part.memory, part.offset);
            whole.back().append(static_cast<const char*>(memories[part.memory].address()) + part.offset,
                                part.size);
            at += part.size;
        }
        spread.files.push_back({fmt::format("/out{}", number), 0, {}});
        if (at > 0) spread.files.back().ranges.push_back({0, at});
    }
    bool written(std::size_t number) const {
        const auto found = files->files.find(spread.files[number].path);
        return found != files->files.end() && found->second.bytes == whole[number];
    }

    std::vector<std::string> whole;  // what the files should hold
};

// Staging memory that a save of 100 MiB took.
Bytes staging_of(const std::string& path, bool sync) {
    SpreadRig rig({.gpus = 1});
    rig.spread.direction = SpreadDirection::to_file;
    rig.add_gpus(1, 100_MiB);
    rig.row(0, 0, 100_MiB, 0, 0);
    rig.spread.files.push_back({path, 0, {{0, 100_MiB}}});
    const Bytes before = rig.fake->allocated;
    CopyOptions options;
    options.sync_file = sync;
    const auto receipt = rig.run(options);
    EXPECT_TRUE(receipt) << receipt.error().to_string();
    return rig.fake->allocated - before;
}

// Around the page cache a device is waited for: processors do not matter. A file in memory is never written
// around it.
TEST(SpreadSave, StagingIsAsLargeAsWhatIsWaitedFor) {
    EXPECT_EQ(staging_of("/out", true), 32_MiB);
    if (!driver::would_live_in_memory("/dev/shm/out")) GTEST_SKIP() << "/dev/shm does not lie in memory";
    EXPECT_EQ(staging_of("/dev/shm/out", true), staging_of("/out", false));
}

// Each time: whether the call has ended when it is first looked for is a matter of microseconds.
TEST(SpreadSources, OneThatCannotBeOpenedIsToldOfAndNotTriedAgain) {
    base::BlockingCalls calls;
    for (int round = 0; round < 300; ++round) {
        transfer::AttachedMemory attached;
        attached.all.resize(1);
        std::atomic<int> tries{0};
        const auto refused = [&](std::size_t) -> Result<transfer::SpreadSources::Open> {
            ++tries;
            return Error{ErrorCode::permission_denied, "it may not be read", "source", {}};
        };
        transfer::SpreadSources sources(calls, attached, refused);
        bool held = false;
        auto open = sources.hold({0}, held);
        while (open && tries < 5) open = sources.hold({0}, held);
        ASSERT_FALSE(open);
        EXPECT_EQ(open.error().code, ErrorCode::permission_denied);
        ASSERT_EQ(tries, 1);
    }
}

// The first and the last of three chunks leave the one between them no room. The last one's end makes it, on a thread that
// ends a piece and asks the chunk before.
TEST(SpreadSources, ThatComeFreeLastAreSeen) {
    SpreadRig rig({.gpus = 1, .files = {.looks = 0, .told = true}, .drive_beside = true});
    rig.spread.direction = SpreadDirection::to_file;
    rig.spread.files.push_back({"/out", 0, {}});
    std::string whole;
    std::uint32_t source = 0;
    for (const Bytes sources : {30, 50, 20}) {
        const Bytes begin = whole.size();
        for (Bytes i = 0; i < sources; ++i, ++source) {
            const std::string path = fmt::format("/source{}", source);
            rig.files->files[path] = {SpreadRig::content(80, source), source + 1};
            rig.spread.memories.push_back(Buffer::file(path, 0, 80));
            rig.row(0, whole.size(), 80, source, 0);
            whole += rig.files->files[path].bytes;
        }
        rig.spread.files[0].ranges.push_back({begin, whole.size()});
        whole.resize(begin + 4096, '?');
    }
    const auto job = rig.submit(chunks_of(4096));
    job->waiters = 1;  // the engine's thread leaves it to this one
    const auto limit = std::chrono::steady_clock::now() + 30s;
    const auto in_time = [&] { return std::chrono::steady_clock::now() < limit; };
    while (rig.files->in_flight() < 32 && in_time()) job->step(true);
    while (rig.files->in_flight() > 0) rig.files->end_pieces();
    EXPECT_TRUE(job->wants_step());
    while (!job->finished() && in_time()) {
        job->step(true);
        rig.files->end_pieces();
    }
    ASSERT_TRUE(job->finished() && job->result());
    whole.resize(rig.spread.files[0].ranges.back().end);
    EXPECT_EQ(rig.files->files.at("/out").bytes, whole);
}

TEST(SpreadSave, WritesWholeFilesInTheirOrder) {
    SaveRig rig;
    const auto receipt = rig.run(chunks_of(64_KiB));
    ASSERT_TRUE(receipt) << receipt.error().to_string();
    for (std::size_t file = 0; file < 3; ++file) EXPECT_TRUE(rig.written(file)) << file;
    EXPECT_EQ(rig.files->committed, (std::vector<std::string>{"/out0", "/out1", "/out2"}));
    EXPECT_EQ(receipt->bytes, rig.file_bytes());
    ASSERT_EQ(receipt->lane_bytes.size(), 3u);
    EXPECT_EQ(receipt->lane_bytes, (std::vector<Bytes>{1'000'000, 200'124, 1000}));
    EXPECT_EQ(receipt->stages[0].name, "GPU to host");
    EXPECT_EQ(receipt->stages[1].name, "write");
    EXPECT_EQ(receipt->stages[1].bytes, rig.file_bytes());
    EXPECT_EQ(receipt->storage.page_cache, rig.file_bytes());
    EXPECT_FALSE(receipt->verified);
    EXPECT_TRUE(rig.nothing_left());
}

TEST(SpreadSave, SomeFilesHaveTheirNotesAndTheRestIsSaid) {
    for (const std::size_t files : {16u, 20u}) {
        SaveRig rig;
        rig.files->script.notes_by_path = true;
        for (std::size_t file = 3; file < files; ++file) rig.target(file, {});
        const auto receipt = rig.run();
        ASSERT_TRUE(receipt) << receipt.error().to_string();
        ASSERT_EQ(receipt->notes.size(), std::min<std::size_t>(files, 17));
        EXPECT_EQ(receipt->notes[15].find("scripted /out"), 0u) << receipt->notes[15];
        EXPECT_EQ(receipt->notes.back() == "there are more notes, which are left out", files > 16);
    }
}

TEST(SpreadSave, VerificationComparesFilesAndMemories) {
    SaveRig rig;
    CopyOptions options = chunks_of(64_KiB);
    options.verify = true;
    const auto receipt = rig.run(options);
    ASSERT_TRUE(receipt) << receipt.error().to_string();
    EXPECT_TRUE(receipt->verified);
    EXPECT_EQ(receipt->storage.page_cache, rig.file_bytes());
    EXPECT_TRUE(rig.written(0) && rig.written(1) && rig.written(2));
}

TEST(SpreadSave, AWrongByteInAFileLeavesNoFile) {
    SaveRig rig;
    // After the last write a byte of the second GPU changes: the file is not what it holds any more.
    bool flipped = false;
    rig.files->script.before = [&](test::FakeFiles& files, std::size_t piece) {
        if (!flipped && files.pieces[piece].capability == 0) {
            static_cast<char*>(rig.memories[1].address())[500'100] ^= 1;
            flipped = true;
        }
    };
    CopyOptions options = chunks_of(64_KiB);
    options.verify = true;
    const auto failed = rig.run(options);
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().code, ErrorCode::mismatch);
    EXPECT_NE(failed.error().message.find("at byte 1000 of /out1 (gpu:1)"), std::string::npos)
        << failed.error().message;
    EXPECT_TRUE(rig.files->files.empty());
    EXPECT_TRUE(rig.nothing_left());
}

TEST(SpreadSave, ANameThatCannotBeGivenLeavesTheFilesBefore) {
    SaveRig rig(
        {.gpus = 2, .files = {.fail_commit = [](const std::string& path) { return path == "/out1"; }}});
    const auto failed = rig.run(chunks_of(64_KiB));
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().code, ErrorCode::no_space);
    EXPECT_NE(failed.error().message.find("1 of 3 files have their names"), std::string::npos)
        << failed.error().message;
    EXPECT_TRUE(rig.written(0));
    EXPECT_EQ(rig.files->files.size(), 1u);
    EXPECT_TRUE(rig.nothing_left());
}

TEST(SpreadSave, ARangeThatCannotBeWrittenLeavesNoFile) {
    SaveRig rig;
    rig.files->script.fail = [](const std::string& path, Bytes offset, Bytes) -> std::optional<Error> {
        if (path == "/out1" && offset > 0) return Error{ErrorCode::no_space, "the disk is full", path, {}};
        return std::nullopt;
    };
    const auto failed = rig.run(chunks_of(64_KiB));
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().code, ErrorCode::no_space);
    EXPECT_NE(failed.error().message.find("of /out1: the disk is full"), std::string::npos)
        << failed.error().message;
    EXPECT_TRUE(rig.files->files.empty());
    EXPECT_TRUE(rig.nothing_left());
}

// Notes what it is asked, and refuses what it is told to.
struct ScriptedClosing final : transfer::SpreadClosing {
    Result<void> asked(const char* what) {
        said += std::string(said.empty() ? "" : " ") + what;
        if (refuses == what) return Error{ErrorCode::io_error, "no " + refuses, "test", {}};
        return {};
    }
    Result<void> begin() override { return asked("begin"); }
    Result<void> before_names() override {
        names_before = files->files.size();
        return asked("before");
    }
    Result<void> without_names() override {
        return asked("without").ok() ? Error{ErrorCode::io_error, "nor back", "test", {}} : Error{};
    }
    void give_up() override { (void)asked("give-up").ok(); }
    Result<std::vector<std::string>> after_names() override {
        if (auto answer = asked("after"); !answer) return answer.error();
        return std::vector<std::string>{"a note"};
    }

    std::string refuses = "nothing";
    FakeFiles* files = nullptr;
    std::size_t names_before = 0;
    std::string said;
};

// With one of its calls refused, or a file's name: what it is asked, and what the save ends with.
TEST(SpreadSave, WhatGoesWithTheNames) {
    struct Case {
        const char* refused;
        const char* said;
        const char* message;  // the end of it; null: all is well
        std::size_t files;
    };
    const Case cases[] = {{"nothing", "begin before after", nullptr, 3},
                          {"begin", "begin", "no begin", 0},
                          {"before", "begin before", "no before", 0},
                          {"after", "begin before after", "no after", 3},
                          {"/out0", "begin before without", "the name could not be given; and nor back", 0},
                          {"/out1", "begin before give-up", "the name could not be given", 1}};
    for (const Case& one : cases) {
        SCOPED_TRACE(one.refused);
        SaveRig rig;
        const auto closing = std::make_shared<ScriptedClosing>();
        closing->refuses = one.refused;
        closing->files = rig.files;
        rig.spread.closing = closing;
        rig.files->script.fail_commit = [&](const std::string& path) { return path == one.refused; };
        const auto receipt = rig.run(chunks_of(64_KiB));
        EXPECT_EQ(closing->said, one.said);
        EXPECT_EQ(closing->names_before, 0u);
        EXPECT_EQ(rig.files->files.size(), one.files);
        ASSERT_EQ(receipt.ok(), one.message == nullptr);
        if (receipt)
            EXPECT_EQ(receipt->notes.back(), "a note");
        else
            EXPECT_TRUE(receipt.error().message.ends_with(one.message)) << receipt.error().message;
    }
}

TEST(SpreadSave, BytesAreLookedAtBeforeTheyAreWritten) {
    SaveRig rig;
    std::atomic<Bytes> seen{0};
    std::atomic<bool> equal{true};
    rig.spread.look = [&](std::size_t file, Bytes offset, const void* data, Bytes size) -> Result<void> {
        seen += size;
        if (std::memcmp(data, rig.whole[file].data() + offset, size) != 0) equal = false;
        return {};
    };
    ASSERT_TRUE(rig.run());
    EXPECT_EQ(seen, rig.file_bytes());
    EXPECT_TRUE(equal);
}

TEST(SpreadSave, CancelledItLeavesNoFile) {
    SaveRig rig({.gpus = 2, .files = {.looks = 3, .hang_after = 100'000}});
    auto job = rig.submit(chunks_of(16_KiB));
    while (rig.files->bytes_moved < 100'000) {
        rig.end_pieces();
        job->step(true);
    }
    job->cancel();
    rig.files->hangs = false;
    rig.engine->wait(job, 0ns);
    ASSERT_FALSE(job->result());
    EXPECT_EQ(job->result().error().code, ErrorCode::cancelled);
    EXPECT_TRUE(rig.files->files.empty());
    EXPECT_TRUE(rig.nothing_left());
}

TEST(SpreadSave, OnceAFileHasItsNameCancelComesTooLate) {
    SaveRig rig;
    auto job = rig.submit(chunks_of(64_KiB));
    while (rig.files->named == 0) {
        rig.end_pieces();
        job->step(true);
    }
    job->cancel();
    rig.engine->wait(job, 0ns);
    ASSERT_TRUE(job->result()) << job->result().error().to_string();
    EXPECT_EQ(rig.files->committed.size(), 3u);
}

TEST(SpreadSave, ThousandsOfTensorsAtTwoPlaces) {
    SpreadRig rig({.gpus = 2, .gpu = {.batches = true}});
    rig.spread.direction = SpreadDirection::to_file;
    constexpr Bytes each = 48;
    std::string whole;
    rig.spread.files.push_back({"/out", 0, {{0, each * 4000}}});
    for (std::uint32_t tensor = 0; tensor < 4000; ++tensor) {
        rig.add_memory(Place::gpu(static_cast<int>(tensor % 2)), each);
        const std::string bytes = SpreadRig::content(each, tensor);
        std::memcpy(rig.memories.back().address(), bytes.data(), each);
        whole += bytes;
        rig.row(0, tensor * each, each, tensor, 0);
    }
    const auto receipt = rig.run();
    ASSERT_TRUE(receipt) << receipt.error().to_string();
    EXPECT_EQ(rig.files->files.at("/out").bytes, whole);
    EXPECT_EQ(receipt->route->lanes.size(), 2u);
    EXPECT_EQ(receipt->lane_bytes, std::vector<Bytes>(2, each * 2000));
    EXPECT_EQ(rig.fake->batches.size(), 2u);  // all tensors of a GPU in the chunk at once
    EXPECT_TRUE(rig.nothing_left());
}

}  // namespace
}  // namespace sidestep
