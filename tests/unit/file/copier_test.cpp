// The threads that read what the page cache holds.
#include <fcntl.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "backends/file/file_jobs.hpp"
#include "driver/file_threads.hpp"
#include "file_test.hpp"

namespace sidestep::backends::file {
namespace {

using driver::FileCompletion;
using driver::FileRequest;
using driver::Wake;

class CopierTest : public testing::Test {
protected:
    void SetUp() override {
        put(folder_ / "x", text_);
        file_ = driver::Fd(::open((folder_ / "x").c_str(), O_RDONLY));
        ASSERT_TRUE(file_);
    }

    void submit(driver::FileIoEngine& engine, std::size_t which) {
        FileRequest request;
        request.fd = file_.get();
        request.address = back_.data() + which * part;
        request.size = part;
        request.offset = which * part;
        request.tag = which;
        engine.submit(request);
    }
    // Reads `count` parts of the text from `first` on, and waits until all have ended.
    void read(driver::FileIoEngine& engine, std::size_t first, std::size_t count) {
        for (std::size_t i = first; i < first + count; ++i) submit(engine, i);
        engine.flush();
        std::vector<FileCompletion> ended;
        const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(1);
        while (ended.size() < count && std::chrono::steady_clock::now() < limit) engine.reap(ended);
        ASSERT_EQ(ended.size(), count) << "a request was forgotten";
        for (const FileCompletion& completion : ended)
            EXPECT_EQ(completion.result, static_cast<std::int64_t>(part));
    }

    static constexpr Bytes part = 10'000;
    static constexpr std::size_t parts = 600;
    Folder folder_;
    const std::string text_ = text_of(part * parts);
    std::string back_ = std::string(text_.size(), '\0');
    driver::Fd file_;
};

// One at a time, in twos, and more than there are threads; right away, and when all threads sleep again.
TEST_F(CopierTest, NoRequestIsForgotten) {
    for (const auto& [wake, share] :
         {std::pair{Wake::always, Bytes{0}}, std::pair{Wake::when_behind, Bytes{0}},
          std::pair{Wake::when_behind, Bytes{1000}}}) {
        std::fill(back_.begin(), back_.end(), '\0');
        const auto engine = driver::create_thread_engine(128, 5, wake, share);
        std::size_t first = 0;
        for (const std::size_t count : {1, 1, 2, 2, 50, 1, 3, 128, 1})
            for (const bool rested : {false, true}) {
                if (rested) std::this_thread::sleep_for(std::chrono::milliseconds(2));
                read(*engine, first, count);
                first += count;
            }
        EXPECT_EQ(back_.substr(0, first * part), text_.substr(0, first * part));
    }
}

// From its own threads, after each request has ended, and not once it was told to end.
TEST_F(CopierTest, ThreadsMakeTheCallAfterEachRequest) {
    for (const Wake wake : {Wake::always, Wake::when_behind}) {
        std::atomic<int> calls{0}, own{0};
        const auto engine = driver::create_thread_engine(128, 5, wake);
        const auto user = std::this_thread::get_id();
        engine->set_callback([&] {
            ++calls;
            own += std::this_thread::get_id() == user;
        });
        read(*engine, 0, 40);
        const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(1);
        while (calls < 40 && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
        EXPECT_EQ(calls, 40);
        EXPECT_EQ(own, 0);
        EXPECT_TRUE(engine->end());
        EXPECT_EQ(calls, 40);
    }
}

// Four read, with one request in line for them. One that submits the next at the call takes it itself, so
// there is no fifth.
TEST_F(CopierTest, AThreadAtTheCallIsStillCountedOn) {
    constexpr std::size_t outstanding = 5, all = 30;
    std::vector<std::string> targets(
        all, std::string(text_.size(), '\0'));  // takes longer than to submit the next
    std::mutex mutex;                           // guards what follows, and the engine's use
    std::set<std::thread::id> threads;
    std::size_t next = 0;
    const auto engine = driver::create_thread_engine(128, 16, Wake::when_behind);
    const auto submit_next = [&] {
        FileRequest request;
        request.fd = file_.get();
        request.address = targets[next].data();
        request.size = text_.size();
        request.tag = next++;
        engine->submit(request);
    };
    engine->set_callback([&] {
        const std::lock_guard lock(mutex);
        threads.insert(std::this_thread::get_id());
        if (next < all) submit_next();
    });
    {
        const std::lock_guard lock(mutex);
        while (next < outstanding) submit_next();
    }
    std::vector<FileCompletion> ended;
    const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (ended.size() < all && std::chrono::steady_clock::now() < limit) {
        const std::lock_guard lock(mutex);
        engine->reap(ended);
    }
    ASSERT_EQ(ended.size(), all);
    const std::lock_guard lock(mutex);
    EXPECT_LE(threads.size(), 4u);
}

TEST_F(CopierTest, EndsWhileRequestsAreInLine) {
    for (int round = 0; round < 20; ++round) {
        const auto engine =
            driver::create_thread_engine(128, 3, Wake::when_behind, round % 2 == 0 ? 0 : 1000);
        for (std::size_t i = 0; i < 20; ++i) {
            FileRequest request;
            request.fd = file_.get();
            request.address = back_.data() + i * part;
            request.size = part;
            request.offset = i * part;
            engine->submit(request);
        }
    }
}

// A request that several threads share.
class SharedRequestTest : public CopierTest {
protected:
    std::int64_t read_shared(void* address, Bytes size, Bytes offset) {
        const auto engine = driver::create_thread_engine(128, 5, Wake::when_behind, 64_KiB);
        FileRequest request;
        request.fd = file_.get();
        request.address = address;
        request.size = size;
        request.offset = offset;
        request.tag = 7;
        engine->submit(request);
        engine->flush();
        std::vector<FileCompletion> ended;
        const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(1);
        while (ended.empty() && std::chrono::steady_clock::now() < limit) engine->reap(ended);
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        engine->reap(ended);
        EXPECT_EQ(ended.size(), 1u) << "a request ends once";
        if (ended.empty()) return -ETIME;
        EXPECT_EQ(ended[0].tag, 7u);
        return ended[0].result;
    }
};

TEST_F(SharedRequestTest, EveryByteArrivesWhateverTheSize) {
    for (const Bytes size : {1_KiB, 64_KiB - 1, 64_KiB, 128_KiB - 1, 128_KiB, 128_KiB + 1, 1_MiB + 333}) {
        std::fill(back_.begin(), back_.end(), '\0');
        EXPECT_EQ(read_shared(back_.data(), size, 4097), static_cast<std::int64_t>(size));
        EXPECT_EQ(back_.substr(0, size), text_.substr(4097, size));
        EXPECT_EQ(back_[size], '\0');
    }
}

// As one call would say it.
TEST_F(SharedRequestTest, WhatLiesBeforeTheFirstGapCounts) {
    const Bytes last = 300'000;
    EXPECT_EQ(read_shared(back_.data(), 1_MiB, text_.size() - last), static_cast<std::int64_t>(last));
    EXPECT_EQ(back_.substr(0, last), text_.substr(text_.size() - last));
    EXPECT_EQ(read_shared(back_.data(), 1_MiB, text_.size()), 0);
    EXPECT_EQ(read_shared(back_.data(), 1_MiB, text_.size() + 1_MiB), 0);
    // Three parts of memory that is there, and then a hole in it.
    auto* const memory = static_cast<char*>(
        ::mmap(nullptr, 512_KiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ASSERT_NE(static_cast<void*>(memory), MAP_FAILED);
    ASSERT_EQ(::munmap(memory + 192_KiB, 64_KiB), 0);
    EXPECT_EQ(read_shared(memory, 512_KiB, 0), static_cast<std::int64_t>(192_KiB));
    EXPECT_EQ(std::string(memory, 192_KiB), text_.substr(0, 192_KiB));
    EXPECT_EQ(read_shared(memory + 192_KiB, 256_KiB, 0), -EFAULT);
    ::munmap(memory, 192_KiB);
    ::munmap(memory + 256_KiB, 256_KiB);
}

// Counts what it gets, and ends it at once.
class CountingEngine final : public driver::FileIoEngine {
public:
    struct Count {
        unsigned reads = 0;
        unsigned writes = 0;
        unsigned small = 0;
        std::int64_t answer = 0;  // instead of moving bytes, where it is below 0
    };
    explicit CountingEngine(Count& count) : count_(count) {}

    std::string_view name() const override { return "counting"; }
    unsigned depth() const override { return 128; }
    void submit(const FileRequest& request) override {
        if (request.size < 64_KiB)
            ++count_.small;
        else
            ++(request.write ? count_.writes : count_.reads);
        const auto at = static_cast<off_t>(request.offset);
        const auto moved = count_.answer < 0 ? count_.answer
                           : request.write   ? ::pwrite(request.fd, request.address, request.size, at)
                                             : ::pread(request.fd, request.address, request.size, at);
        ended_.push_back({request.tag, moved});
    }
    void flush() override {}
    void reap(std::vector<FileCompletion>& ended) override {
        ended.insert(ended.end(), ended_.begin(), ended_.end());
        ended_.clear();
    }

private:
    Count& count_;
    std::vector<FileCompletion> ended_;
};

class TwoEnginesTest : public CopierTest {
protected:
    // Moves a part of the file and the whole text; what became of it.
    Result<void> move(FileJobs& jobs, bool write, Bytes size) {
        backend::AttachOptions options;
        options.page_cache = PageCache::use;
        options.access = write ? backend::Access::write : backend::Access::read;
        options.expected_size = size;
        const auto buffer = write ? Buffer::file(folder_ / "y") : Buffer::file(folder_ / "x", 0, size);
        auto file = FileRegistration::open(buffer, options, driver::CacheProbe::nowait);
        if (!file) return file.error();
        MemoryRegistration memory(Buffer::host(back_.data(), size));
        const Stretch stretch{back_.data(), 0, size, 0, 0};
        struct Owner final : backend::PieceOwner {
            void ended() override {}
        } owner;
        backend::Flight flight(owner);
        const auto begun = jobs.start(**file, memory, write, cut(stretch, false), flight);
        if (!begun) return begun.error();
        notes_ = (*file)->notes();
        if (*begun == backend::Progress::done) return {};
        for (int i = 0; i < 1000; ++i) {
            jobs.look();
            notes_ = (*file)->notes();
            if (flight.over()) return flight.result();
        }
        return Error{ErrorCode::timed_out, "it does not end", {}, {}};
    }
    std::shared_ptr<FileJobs> jobs() {
        return std::make_shared<FileJobs>(std::make_unique<CountingEngine>(engine_), FileJobs::Depths{},
                                          std::make_unique<CountingEngine>(copier_));
    }

    std::vector<std::string> notes_;  // of the file that move() was about
    CountingEngine::Count engine_;
    CountingEngine::Count copier_;
};

TEST_F(TwoEnginesTest, TheCopierReadsFromThePageCacheAndDoesNothingElse) {
    const auto both = jobs();
    ASSERT_TRUE(move(*both, false, text_.size()).ok());
    EXPECT_EQ(back_, text_);
    EXPECT_EQ(copier_.reads, 3u);  // slices of 2 MiB
    EXPECT_TRUE(notes_.empty()) << notes_[0];
    EXPECT_EQ(engine_.reads, 0u);
    ASSERT_TRUE(move(*both, true, text_.size()).ok());
    EXPECT_EQ(copier_.writes, 0u);
    EXPECT_EQ(engine_.writes, 3u);
    ASSERT_TRUE(move(*both, false, 1000).ok());
    EXPECT_EQ(copier_.small, 0u) << "it is quicker done than handed over";
    EXPECT_EQ(engine_.small, 1u);
}

TEST_F(TwoEnginesTest, WithoutThreadsTheOtherEngineReads) {
    copier_.answer = -ENOMEM;
    const auto both = jobs();
    ASSERT_TRUE(move(*both, false, text_.size()).ok());
    EXPECT_EQ(back_, text_);
    EXPECT_EQ(engine_.reads, 3u);
    ASSERT_EQ(notes_.size(), 1u);
    EXPECT_TRUE(says(notes_[0], "no thread could be started")) << notes_[0];
}

}  // namespace
}  // namespace sidestep::backends::file
