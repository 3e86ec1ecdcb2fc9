#include "tests/failure/works.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include <unistd.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sidestep/cuda.hpp>
#include "tests/contents.hpp"
#include "tests/failure/driver_calls.hpp"

namespace sidestep::failure {
namespace {

// No whole number of pages, and more than one chunk.
constexpr Bytes size = (3 << 20) + 1234;
constexpr Bytes chunk = 1 << 20;
// Of each of the four: two make a file of more than one chunk.
constexpr Bytes tensor_size = chunk + 1234;

using test::get;
using test::put;

std::string some_bytes(unsigned seed, Bytes bytes = size) {
    return test::text_of(bytes, seed);
}
std::string unlike(const std::string& what, const std::string& is, const std::string& should) {
    if (is == should) return {};
    const auto differs = std::mismatch(is.begin(), is.end(), should.begin(), should.end());
    return fmt::format("{}: {} bytes for {}, the first other one at {}: {}", what, is.size(), should.size(),
                       differs.first - is.begin(), std::string(differs.first, is.end()).substr(0, 8));
}
CopyOptions with_deadline(std::chrono::milliseconds deadline) {
    CopyOptions options;
    options.deadline = deadline;
    options.chunk = chunk;
    return options;
}

class FileToMemory : public Work {
public:
    FileToMemory(const Context& context, Place place, bool verifies, PageCache cache = PageCache::automatic)
        : Work(context), place_(std::move(place)), verifies_(verifies), cache_(cache) {}
    void prepare() override {
        put(at("from"), content_);
        memory_ = filled(place_, std::string(size, 'o'));
    }
    Result<void> run(std::chrono::milliseconds deadline) override {
        CopyOptions options = with_deadline(deadline);
        options.verify = verifies_;
        options.page_cache = cache_;
        return result_of(context_.copy(Buffer::file(at("from"), 0, size), memory_.buffer(), options));
    }
    std::string wrong_bytes() override { return unlike("memory", content_of(memory_.buffer()), content_); }

private:
    const Place place_;
    const bool verifies_;
    const PageCache cache_;
    const std::string content_ = some_bytes(1);
    Allocation memory_;
};

// A whole file, where there was another one.
class ToFile : public Work {
public:
    ToFile(const Context& context, Place from, PageCache cache)
        : Work(context), from_(std::move(from)), cache_(cache) {}
    void prepare() override {
        put(at("to"), "old");
        if (from_.is_file())
            put(at("from"), content_);
        else
            memory_ = filled(from_, content_);
    }
    Result<void> run(std::chrono::milliseconds deadline) override {
        CopyOptions options = with_deadline(deadline);
        options.page_cache = cache_;
        options.sync_file = true;
        const Buffer from = from_.is_file() ? Buffer::file(at("from")) : memory_.buffer();
        return result_of(context_.copy(from, Buffer::file(at("to")), options));
    }
    std::string wrong_bytes() override { return unlike("the file", get(at("to")), content_); }
    std::string left_over() override {
        const std::string now = get(at("to"));
        // The name may have been given already.
        if (now != "old" && now != content_) return unlike("the file as it was", now, "old");
        const std::size_t expected = from_.is_file() ? 2 : 1;
        if (names().size() == expected) return {};
        return fmt::format("the folder holds {}", fmt::join(names(), ", "));
    }

private:
    const Place from_;
    const PageCache cache_;
    const std::string content_ = some_bytes(2);
    Allocation memory_;
};

class Batch : public Work {
public:
    using Work::Work;
    void prepare() override {
        for (unsigned i = 0; i < 3; ++i) {
            put(at(std::to_string(i)), some_bytes(i, 100'000));
            memories_.push_back(filled(i == 0 ? Place::host() : gpu(i), std::string(100'000, 'o')));
        }
    }
    Result<void> run(std::chrono::milliseconds deadline) override {
        std::vector<BatchItem> items;
        for (unsigned i = 0; i < 3; ++i)
            items.push_back({Buffer::file(at(std::to_string(i)), 0, 100'000), memories_[i].buffer()});
        return result_of(context_.copy_batch(items, with_deadline(deadline)));
    }
    std::string wrong_bytes() override {
        std::string all;
        for (unsigned i = 0; i < 3; ++i)
            all += unlike(std::to_string(i), content_of(memories_[i].buffer()), some_bytes(i, 100'000));
        return all;
    }

private:
    std::vector<Allocation> memories_;
};

#ifdef SIDESTEP_FAILURE_OVER_DRIVER
// A copy in the order of a caller's stream, and a copy of the driver's own behind it. Staged: the stream waits at a gate.
class OnStream : public Work {
public:
    OnStream(const Context& context, bool staged, bool verifies)
        : Work(context), staged_(staged), verifies_(verifies) {}
    void prepare() override {
        put(at("from"), content_);
        from_ = filled(Place::host(), content_);  // pinned
        memory_ = filled(Place::gpu(0), std::string(size, 'o'));
        seen_ = filled(Place::host(), std::string(size, 'n'));
    }
    Result<void> run(std::chrono::milliseconds deadline) override {
        CopyOptions options = with_deadline(deadline);
        options.verify = verifies_;
        const Buffer from = staged_ ? Buffer::file(at("from"), 0, size) : from_.buffer();
        stream_.hold();
        held_up_ = true;
        Transfer copy = cuda::copy(context_, from, memory_.buffer(), stream_.get(), options);
        held_up_ = false;
        stream_.copy(seen_.address(), memory_.address(), size);
        stream_.let_go();
        return result_of(std::move(copy));
    }
    std::string wrong_bytes() override {
        if (const std::string waits = left_over(); !waits.empty()) return waits;
        return unlike("memory", content_of(memory_.buffer()), content_) +
               unlike("what the stream saw", content_of(seen_.buffer()), content_);
    }
    std::string left_over() override {
        return stream_.ends_within(std::chrono::seconds(2)) ? "" : "the stream still waits";
    }
    std::vector<std::string> words() const override {
        std::vector<std::string> all = Work::words();
        all.push_back("gate on a stream");
        return all;
    }

private:
    const bool staged_;
    const bool verifies_;
    const std::string content_ = some_bytes(3);
    Allocation from_, memory_, seen_;
    CallersStream stream_;
};
#endif

// Tensors in GPU and host memory, in two files with an index.
class Saved : public Work {
public:
    using Work::Work;
    void prepare() override {
        std::filesystem::create_directory(at("saved"));
        for (unsigned i = 0; i < 4; ++i)
            tensors_.push_back(filled(i % 2 == 0 ? Place::host() : gpu(i), some_bytes(i, tensor_size)));
    }
    Result<void> run(std::chrono::milliseconds deadline) override { return save(at("saved"), deadline); }
    std::string wrong_bytes() override { return wrong_in(at("saved")); }
    std::string left_over() override {
        std::vector<std::string> hidden;
        for (const auto& entry : std::filesystem::directory_iterator(at("saved")))
            if (entry.path().filename().string().starts_with('.'))
                hidden.push_back(entry.path().filename().string());
        return hidden.empty() ? "" : fmt::format("the folder holds {}", fmt::join(hidden, ", "));
    }

protected:
    Result<void> save(const std::string& to, std::chrono::milliseconds deadline, bool flushes = true) {
        SaveOptions options;
        options.shard_bytes = 2 * tensor_size;
        options.sync_file = flushes;
        options.deadline = deadline;
        options.chunk = chunk;
        std::vector<TensorToSave> all;
        for (unsigned i = 0; i < 4; ++i)
            all.push_back({fmt::format("t{}", i), Dtype::u8, {tensor_size}, tensors_[i].buffer()});
        return result_of(context_.save(all, to, options));
    }
    std::string wrong_in(const std::string& folder) {
        const auto checkpoint = Checkpoint::open(folder);
        if (!checkpoint) return checkpoint.error().to_string();
        LoadOptions options;
        options.to = {Place::host()};
        auto loaded = context_.load(*checkpoint, options).wait();
        return loaded ? wrong_in(*loaded) : loaded.error().to_string();
    }
    std::string wrong_in(Loaded& loaded) {
        std::string all;
        for (unsigned i = 0; i < 4; ++i)
            for (const Place& place : loaded.places()) {
                const LoadedTensor* tensor = loaded.find(fmt::format("t{}", i), place);
                all += tensor ? unlike(fmt::format("t{}", i), content_of(tensor->buffer),
                                       some_bytes(i, tensor_size))
                              : fmt::format("no t{}", i);
            }
        return all;
    }

private:
    std::vector<Allocation> tensors_;
};

class LoadedBack : public Saved {
public:
    LoadedBack(const Context& context, bool verifies) : Saved(context), verifies_(verifies) {}
    void prepare() override {
        Saved::prepare();
        const auto saved = save(at("saved"), {}, false);
        if (!saved) std::abort();
        told_ = false;  // that was the save
    }
    Result<void> run(std::chrono::milliseconds deadline) override {
        const auto checkpoint = Checkpoint::open(at("saved"), {.deadline = deadline});
        if (!checkpoint) return checkpoint.error();
        LoadOptions options;
        options.to = {Place::gpu(0), Place::gpu(1)};
        options.verify = verifies_;
        options.deadline = deadline;
        options.chunk = chunk;
        auto loading = context_.load(*checkpoint, options);
        auto loaded = loading.wait();
        told_ = true;
        if (!loaded) return loaded.error();
        loaded_.emplace(std::move(*loaded));
        return {};
    }
    std::string wrong_bytes() override { return wrong_in(*loaded_); }

private:
    const bool verifies_;
    std::optional<Loaded> loaded_;
};

// Memory that is found under its name; published beforehand, or with it.
class Published : public Work {
public:
    Published(const Context& context, bool beforehand) : Work(context), beforehand_(beforehand) {}
    void prepare() override {
        from_ = filled(Place::gpu(0), content_);
        to_ = filled(Place::host(), std::string(size, 'o'));
        if (beforehand_) publication_ = context_.publish(name_, from_).value();
    }
    Result<void> run(std::chrono::milliseconds deadline) override {
        held_up_ = !beforehand_;
        const Result<Publication> publication = beforehand_ ? Publication() : context_.publish(name_, from_);
        held_up_ = false;
        if (!publication) return publication.error();
        return result_of(context_.copy(Buffer::shared(name_), to_.buffer(), with_deadline(deadline)));
    }
    std::string wrong_bytes() override { return unlike("memory", content_of(to_.buffer()), content_); }
    std::vector<std::string> words() const override {
        return {name_, "published", "shared", "memfd", "gpu:0 0x"};
    }
    // Of the connection.
    std::size_t kept_descriptors() const override { return 4; }

private:
    // One that could not be withdrawn stays taken.
    static inline int names_ = 0;
    const std::string name_ = "failure-" + std::to_string(::getpid()) + "-" + std::to_string(++names_);
    const std::string content_ = some_bytes(7);
    const bool beforehand_;
    Allocation from_, to_;
    Publication publication_;
};

using Made = std::unique_ptr<Work>;

}  // namespace

Work::Work(const Context& context) : context_(context) {
    std::string name = (std::filesystem::temp_directory_path() / "sidestep-failure-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    folder_ = name;
}

Work::~Work() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
}

Result<void> Work::result_of(Transfer transfer) {
    auto receipt = transfer.wait();
    told_ = true;
    if (!receipt) return receipt.error();
    return {};
}

std::vector<std::string> Work::names() const {
    std::vector<std::string> all;
    for (const auto& entry : std::filesystem::directory_iterator(folder_))
        all.push_back(entry.path().filename().string());
    std::sort(all.begin(), all.end());
    return all;
}

std::string Work::content_of(const Buffer& memory) const {
    std::string text(memory.size(), '\0');
    const auto copied = context_.copy(memory, Buffer::host(text.data(), text.size())).wait();
    return copied ? text : copied.error().to_string();
}

Place Work::gpu(unsigned number) const {
    return Place::gpu(static_cast<int>(number) % context_.topology().gpu_count());
}

Allocation Work::filled(const Place& place, const std::string& with) const {
    Allocation memory = context_.allocate(place, with.size()).value();
    context_.copy(Buffer::host(with.data(), with.size()), memory.buffer()).wait().value();
    return memory;
}

const std::vector<Kind>& kinds() {
    static const std::vector<Kind> all{
        {"FileToHost",
         [](const Context& c) -> Made { return std::make_unique<FileToMemory>(c, Place::host(), false); }},
        {"FileAroundCache",
         [](const Context& c) -> Made {
             return std::make_unique<FileToMemory>(c, Place::host(), false, PageCache::bypass);
         }},
        {"FileToGpu",
         [](const Context& c) -> Made { return std::make_unique<FileToMemory>(c, Place::gpu(0), false); }},
        {"Verified",
         [](const Context& c) -> Made { return std::make_unique<FileToMemory>(c, Place::gpu(0), true); }},
        {"HostToFile",
         [](const Context& c) -> Made { return std::make_unique<ToFile>(c, Place::host(), PageCache::use); }},
        {"GpuToFile",
         [](const Context& c) -> Made {
             return std::make_unique<ToFile>(c, Place::gpu(1), PageCache::bypass);
         }},
        {"FileToFile",
         [](const Context& c) -> Made {
             return std::make_unique<ToFile>(c, Place::file("from"), PageCache::automatic);
         }},
        {"Batch", [](const Context& c) -> Made { return std::make_unique<Batch>(c); }},
        {"Save", [](const Context& c) -> Made { return std::make_unique<Saved>(c); }},
        {"Load", [](const Context& c) -> Made { return std::make_unique<LoadedBack>(c, false); }},
        {"LoadVerified", [](const Context& c) -> Made { return std::make_unique<LoadedBack>(c, true); }},
        {"Found", [](const Context& c) -> Made { return std::make_unique<Published>(c, true); }},
        {"Published", [](const Context& c) -> Made { return std::make_unique<Published>(c, false); },
         "publish() has no deadline"}};
    return all;
}

const std::vector<Kind>& kinds_on_stream() {
    [[maybe_unused]] constexpr const char* opens_first =
        "files are opened before the gate is put, and that before the call returns";
    static const std::vector<Kind> all{
#ifdef SIDESTEP_FAILURE_OVER_DRIVER
        {"OneHop", [](const Context& c) -> Made { return std::make_unique<OnStream>(c, false, false); }, "",
         false},
        {"Gated", [](const Context& c) -> Made { return std::make_unique<OnStream>(c, true, false); },
         opens_first},
        {"GatedVerified", [](const Context& c) -> Made { return std::make_unique<OnStream>(c, true, true); },
         opens_first},
#endif
    };
    return all;
}

}  // namespace sidestep::failure
