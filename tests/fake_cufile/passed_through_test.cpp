// The drop-in where NVIDIA's own library has a direct path: what reaches that library, what comes back, and what statistics say.
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <functional>
#include <optional>
#include <thread>
#include <tuple>

#include <sidestep/cuda.hpp>
#include "shims/cufile/driver.hpp"
#include "shims/cufile/slots.hpp"
#include "tests/cuda_by_name.hpp"
#include "tests/cufile/world.hpp"
#include "tests/fake_cufile/stand_in.hpp"
#include "tests/fake_cufile/taken_call.hpp"
#include "tests/warm_pages.hpp"

namespace sidestep::fake_cufile {
namespace {

using namespace cufile_test;

constexpr std::size_t memory_size = 16_MiB, file_size = 12_MiB + 4096;

// One part of a request; they follow each other in the file, not in memory.
struct Part {
    std::size_t size;
    off_t file_offset, base_offset;
    bool operator==(const Part&) const = default;
};
constexpr off_t file_begin = 8192;
const std::vector<Part> parts{{3_MiB, file_begin, 1_MiB}, {2_MiB + 4096, file_begin + 3_MiB, 8_MiB + 512}};

class PassedThrough : public test::OnCuda {
protected:
    void SetUp() override {
        OnCuda::SetUp();
        if (IsSkipped()) return;
        if (const std::string why = missing(); !why.empty()) GTEST_SKIP() << why;
        ::setenv("CUFILE_ENV_PATH_JSON", SIDESTEP_SOURCE_DIR "/tests/cufile/empty.json", 1);
        ::setenv("SIDESTEP_CUFILE_VERSION", "1.19", 1);  // the statistics that abi.h declares
        choose(0);
        ASSERT_EQ(cuda.allocate(&gpu, memory_size), 0);
        ASSERT_EQ(cuda.make_stream(&stream, 1), 0);
        base = reinterpret_cast<unsigned char*>(gpu);
        open(true);  // else it would matter what the page cache holds
    }
    void TearDown() override {
        if (stream == nullptr) return;
        close();
        EXPECT_EQ(ask("fake_cufile_files"), 0);
        EXPECT_EQ(cuda.end_stream(stream), 0);
        EXPECT_EQ(cuda.release(gpu), 0);
    }

    void open(bool around_cache) {
        ASSERT_CUFILE(cuFileSetParameterBool(CUFILE_PARAM_FORCE_ODIRECT_MODE, around_cache), CU_FILE_SUCCESS);
        ASSERT_CUFILE(cuFileDriverOpen(), CU_FILE_SUCCESS);
        ASSERT_CUFILE(cuFileSetStatsLevel(3), CU_FILE_SUCCESS);
        ASSERT_CUFILE(cuFileStatsStart(), CU_FILE_SUCCESS);
        // The first copy tries the path out, with reads and writes of its own.
        const Descriptor descriptor(file.path(), O_RDWR);
        const Handle handle(descriptor);
        for (const Part& part : parts) {
            ASSERT_EQ(cuFileRead(handle, base, part.size, 0, 0), static_cast<ssize_t>(part.size));
            ASSERT_EQ(cuFileWrite(handle, base, part.size, 0, 0), static_cast<ssize_t>(part.size));
        }
        forget();
    }
    static void close() {
        while (cuFileUseCount() > 0) EXPECT_CUFILE(cuFileDriverClose(), CU_FILE_SUCCESS);
    }

    template <typename Function>
    static Function* of_stand_in(const char* name) {
        void* const library = ::dlopen(SIDESTEP_FAKE_CUFILE, RTLD_NOW | RTLD_NOLOAD);
        return library == nullptr ? nullptr : reinterpret_cast<Function*>(::dlsym(library, name));
    }
    static int ask(const char* question) {
        auto* const function = of_stand_in<int()>(question);
        return function == nullptr ? -1 : function();
    }
    void forget() {
        taken(false);
        EXPECT_CUFILE(cuFileStatsReset(), CU_FILE_SUCCESS);
    }
    // What reached the library since it was asked last, where all of it was reading, or all writing. Pieces that follow each other
    // in the file and in memory are told as one.
    std::vector<Part> taken(bool write) const {
        std::vector<TakenCall> calls(1000);
        calls.resize(of_stand_in<std::size_t(TakenCall*, std::size_t)>("fake_cufile_taken")(calls.data(),
                                                                                            calls.size()));
        std::sort(calls.begin(), calls.end(), [](const TakenCall& a, const TakenCall& b) {
            return std::tie(a.file_offset, a.size) < std::tie(b.file_offset, b.size);
        });
        std::vector<Part> all;
        for (const TakenCall& call : calls) {
            if (call.write != write) return {};
            const off_t at = static_cast<const unsigned char*>(call.base) - base + call.base_offset;
            const bool follows =
                !all.empty() &&
                all.back().file_offset + static_cast<off_t>(all.back().size) == call.file_offset &&
                all.back().base_offset + static_cast<off_t>(all.back().size) == at;
            if (follows)
                all.back().size += call.size;
            else
                all.push_back({call.size, call.file_offset, at});
        }
        return all;
    }
    // Of all GPUs together.
    struct Seen {
        std::uint64_t direct = 0, staged = 0, bytes = 0, of_batch = 0;
    };
    static Seen statistics(bool write) {
        CUfileStatsLevel3_t stats{};
        EXPECT_CUFILE(cuFileGetStatsL3(&stats), CU_FILE_SUCCESS);
        Seen seen;
        seen.of_batch = stats.detailed.basic.batch_p2p_submit_ops.ok;
        for (const CUfilePerGpuStats_t& gpu_stats : stats.per_gpu_stats) {
            seen.direct += write ? gpu_stats.n_p2p_writes : gpu_stats.n_p2p_reads;
            seen.staged += write ? gpu_stats.n_posix_writes : gpu_stats.n_posix_reads;
            seen.bytes += write ? gpu_stats.writes_bytes : gpu_stats.read_bytes;
        }
        return seen;
    }

    // The parts, by each kind of call; one answer each.
    using Answers = std::vector<ssize_t>;
    Answers plain(CUfileHandle_t handle, bool write) const {
        Answers answers;
        for (const Part& part : parts)
            answers.push_back(write
                                  ? cuFileWrite(handle, base, part.size, part.file_offset, part.base_offset)
                                  : cuFileRead(handle, base, part.size, part.file_offset, part.base_offset));
        return answers;
    }
    Answers vectored(CUfileHandle_t handle, bool write) const {
        std::vector<CUfileIOVec_t> list;
        for (const Part& part : parts) list.push_back({base + part.base_offset, part.size});
        return {write ? cuFileWritev(handle, list.data(), list.size(), file_begin, 0)
                      : cuFileReadv(handle, list.data(), list.size(), file_begin, 0)};
    }
    Answers batched(CUfileHandle_t handle, bool write) const {
        CUfileBatchHandle_t batch = nullptr;
        EXPECT_CUFILE(cuFileBatchIOSetUp(&batch, 4), CU_FILE_SUCCESS);
        std::vector<CUfileIOParams_t> entries(parts.size());
        for (std::size_t i = 0; i < parts.size(); ++i) {
            entries[i].mode = CUFILE_BATCH;
            entries[i].u.batch = {base, parts[i].file_offset, parts[i].base_offset, parts[i].size};
            entries[i].fh = handle;
            entries[i].opcode = write ? CUFILE_WRITE : CUFILE_READ;
            entries[i].cookie = &entries[i];
        }
        auto count = static_cast<unsigned>(parts.size());
        EXPECT_CUFILE(cuFileBatchIOSubmit(batch, count, entries.data(), 0), CU_FILE_SUCCESS);
        std::vector<CUfileIOEvents_t> events(parts.size());
        EXPECT_CUFILE(cuFileBatchIOGetStatus(batch, count, &count, events.data(), nullptr), CU_FILE_SUCCESS);
        EXPECT_EQ(count, parts.size());
        Answers answers(parts.size());
        for (const CUfileIOEvents_t& event : events) {
            const auto answer = static_cast<ssize_t>(event.ret);
            EXPECT_EQ(event.status, answer < 0 ? CUFILE_FAILED : CUFILE_COMPLETE);
            answers[static_cast<std::size_t>(static_cast<CUfileIOParams_t*>(event.cookie) - entries.data())] =
                answer;
        }
        cuFileBatchIODestroy(batch);
        return answers;
    }
    Answers on_stream(CUfileHandle_t handle, bool write) const {
        std::vector<Part> held = parts;
        Answers answers(held.size(), -7);
        for (std::size_t i = 0; i < held.size(); ++i)
            EXPECT_CUFILE((write ? cuFileWriteAsync : cuFileReadAsync)(
                              handle, base, &held[i].size, &held[i].file_offset, &held[i].base_offset,
                              &answers[i], stream),
                          CU_FILE_SUCCESS);
        EXPECT_EQ(cuda.synchronize(stream), 0);
        return answers;
    }
    struct Kind {
        const char* name;
        std::function<Answers(CUfileHandle_t, bool)> run;
    };
    std::vector<Kind> kinds() const {
        return {{"plain", [this](auto handle, bool write) { return plain(handle, write); }},
                {"vectored", [this](auto handle, bool write) { return vectored(handle, write); }},
                {"batch", [this](auto handle, bool write) { return batched(handle, write); }},
                {"stream", [this](auto handle, bool write) { return on_stream(handle, write); }}};
    }
    static ssize_t sum(const Answers& answers) {
        ssize_t all = 0;
        for (const ssize_t answer : answers) all += answer;
        return all;
    }
    // Reads and writes by every kind, with right answers and bytes; the stand-in's state is that of `faults`. What statistics have
    // to say is direct, or not.
    void both_ways(const Kind& kind, bool direct, bool arrives) {
        SCOPED_TRACE(kind.name);
        constexpr auto all = static_cast<ssize_t>(5_MiB + 4096);
        const auto content = pattern(file_size, 3);
        const TempFile source(content), target(std::vector<unsigned char>(file_size, 0));
        for (const bool write : {false, true}) {
            SCOPED_TRACE(write ? "write" : "read");
            const Descriptor descriptor((write ? target : source).path(), O_RDWR);
            const Handle handle(descriptor);
            if (!write) std::fill(base, base + memory_size, 0xee);
            forget();
            EXPECT_EQ(sum(kind.run(handle, write)), all) << sidestepCufileLastError();
            EXPECT_TRUE(taken(write) == (arrives ? parts : std::vector<Part>{}));
            const Seen told = statistics(write);
            EXPECT_EQ(told.direct, direct ? parts.size() : 0u);
            EXPECT_EQ(told.staged, direct ? 0u : parts.size());
            EXPECT_EQ(told.bytes, static_cast<std::uint64_t>(all));
            EXPECT_EQ(told.of_batch, direct && kind.name == std::string("batch") ? parts.size() : 0u);
            const auto seen = write ? target.content() : content;
            for (const Part& part : parts)
                EXPECT_TRUE(std::equal(base + part.base_offset, base + part.base_offset + part.size,
                                       seen.begin() + part.file_offset));
        }
    }

    const Faults faults{"nvfs"};
    const TempFile file{pattern(file_size, 1)};
    unsigned long long gpu = 0;
    unsigned char* base = nullptr;  // the same: the stand-in's GPUs have memory of the process
    CUstream stream = nullptr;
};

TEST_F(PassedThrough, EveryKindOfCallArrivesAsItWasMade) {
    for (const char* way : {"nvfs", "p2p", "nvfs,short"}) {
        SCOPED_TRACE(way);
        ::setenv("FAKE_CUFILE", way, 1);
        // Of a short answer the rest is asked for again: more calls, and the same answer in the end.
        const bool whole = way != std::string("nvfs,short");
        for (const Kind& kind : kinds()) {
            if (whole)
                both_ways(kind, true, true);
            else {
                const Descriptor descriptor(file.path(), O_RDWR);
                const Handle handle(descriptor);
                EXPECT_EQ(sum(kind.run(handle, false)), static_cast<ssize_t>(5_MiB + 4096));
            }
        }
    }
}

TEST_F(PassedThrough, WhereItRefusesOursServes) {
    for (const char* words : {"file=5027", "file=5030"}) {
        SCOPED_TRACE(words);
        ::setenv("FAKE_CUFILE", words, 1);
        for (const Kind& kind : kinds()) both_ways(kind, false, false);
    }
    // It takes the calls and does not say so in its counters: they do not count as direct.
    ::setenv("FAKE_CUFILE", "posix", 1);
    for (const Kind& kind : kinds()) both_ways(kind, false, true);
}

TEST_F(PassedThrough, ItsErrorsComeBack) {
    struct Case {
        const char* words;
        ssize_t plain, entry;  // the answer of a call, and of an entry of a batch or on a stream
        int number;
        const char* said;
    };
    const Case cases[] = {
        {"eio", -1, -EIO, EIO, "Input/output error"},
        {"refuse", -CU_FILE_CUDA_DRIVER_ERROR, -CU_FILE_CUDA_DRIVER_ERROR, 0, "5034 IO_DISABLED"}};
    const Descriptor descriptor(file.path(), O_RDWR);
    const Handle handle(descriptor);
    for (const Case& each : cases) {
        SCOPED_TRACE(each.words);
        ::setenv("FAKE_CUFILE", each.words, 1);
        for (const bool write : {false, true}) {
            errno = 0;
            EXPECT_EQ(plain(handle, write), Answers(parts.size(), each.plain));
            EXPECT_EQ(errno, each.number);
            EXPECT_NE(std::string(sidestepCufileLastError()).find(each.said), std::string::npos)
                << sidestepCufileLastError();
            EXPECT_EQ(vectored(handle, write), Answers(1, each.plain));
            EXPECT_EQ(batched(handle, write), Answers(parts.size(), each.entry));
            EXPECT_EQ(on_stream(handle, write), Answers(parts.size(), each.entry));
        }
    }
}

TEST_F(PassedThrough, TheEndOfTheFileAndWhatIsNoWholeBlock) {
    const auto content = pattern(file_size - 100, 5);
    const TempFile odd(content);
    const Descriptor descriptor(odd.path(), O_RDONLY);
    const Handle handle(descriptor);
    forget();
    EXPECT_EQ(cuFileRead(handle, base, 4_MiB, 10_MiB, 77), static_cast<ssize_t>(2_MiB + 4096 - 100));
    EXPECT_TRUE(std::equal(content.begin() + 10_MiB, content.end(), base + 77));
    EXPECT_EQ(taken(false), (std::vector<Part>{{2_MiB, 10_MiB, 77}}));
    EXPECT_EQ(cuFileRead(handle, base, 4096, file_size, 0), 0);
    EXPECT_EQ(taken(false), std::vector<Part>{});
}

// As programs find it: little reads are done here, and what the page cache does not hold comes directly.
TEST_F(PassedThrough, WithoutSettingsColdFilesPass) {
    close();
    open(false);
    const Descriptor descriptor(file.path(), O_RDWR);
    const Handle handle(descriptor);
    for (const std::size_t size : {std::size_t{4096}, std::size_t{64 << 10}}) {
        EXPECT_EQ(cuFileRead(handle, base, size, 0, 0), static_cast<ssize_t>(size));
        EXPECT_EQ(taken(false), std::vector<Part>{});
    }
    for (const Bytes size : {1_MiB, 2_MiB, 3_MiB, 8_MiB}) {
        // What the kernel reads ahead may come after its pages were dropped, and is warm then.
        bool cold = false, passed = false;
        for (int turn = 0; turn < 5 && !passed; ++turn) {
            cold = test::drop_pages(file.path());
            forget();
            EXPECT_EQ(cuFileRead(handle, base, size, 0, 0), static_cast<ssize_t>(size));
            passed = taken(false) == std::vector<Part>{{size, 0, 0}} && statistics(false).direct == 1;
        }
        EXPECT_TRUE(passed || !cold) << size;  // a file system in memory is never cold
    }
}

// Its late bytes would be taken for those of a later call.
TEST_F(PassedThrough, WhatACopyThatHangsMayReachServesNobody) {
    const Context& context = *cufile::Driver::get().context();
    std::atomic<bool> go_on{false};
    const auto wait = [](void* until) {
        while (!*static_cast<std::atomic<bool>*>(until)) std::this_thread::yield();
    };
    ASSERT_EQ(cuda.call_host(stream, wait, &go_on), 0);
    CopyOptions options;
    options.deadline = std::chrono::milliseconds(50);
    const auto slots_of_a_thread = [&] {
        void* slot = nullptr;
        std::thread([&] { slot = cufile::slots_of_this_thread(context).value()->front(); }).join();
        return slot;
    };
    auto slots = cufile::slots_of_this_thread(context).value();
    void* const slot = slots->front();
    std::optional<Transfer> copy =
        sidestep::cuda::copy(context, Buffer::gpu(0, base, 4096), Buffer::host(slot, 4096), stream, options);
    EXPECT_EQ(cufile::wait(*copy, slots).system, ETIMEDOUT);
    slots.reset();
    EXPECT_NE(cufile::slots_of_this_thread(context).value()->front(), slot);
    EXPECT_NE(slots_of_a_thread(), slot);
    go_on = true;
    copy.reset();
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (slots_of_a_thread() != slot && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
    EXPECT_EQ(slots_of_a_thread(), slot) << "it comes back once the copy is over";
}

}  // namespace
}  // namespace sidestep::fake_cufile
