// Files in memory, GPUs that a test scripts, and plans of what goes where.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "fake_backend.hpp"
#include "tests/contents.hpp"
#include "transfer/engine.hpp"

namespace sidestep::test {

// Files that live in this object. Pieces end with the script's answer at the look after the first `looks`.
class FakeFiles final : public backend::Backend, public backend::Allocator {
public:
    struct Script {
        int looks = 1;
        std::function<std::optional<Error>(const std::string& path, Bytes offset, Bytes size)>
            fail;                                                         // a piece
        std::function<void(FakeFiles& files, std::size_t piece)> before;  // each piece
        std::function<bool(const std::string& path)> fail_commit;
        std::optional<Bytes>
            hang_after;           // once so many bytes were moved nothing ends, until `hangs` is taken back
        bool told = false;        // a look tells of nothing, end_pieces() does
        bool no_staging = false;  // takes over pinned memory, and has none
        bool notes_by_path = false;
        std::function<void(const std::string& path)> open;  // before a file is open
    };

    explicit FakeFiles(Script given) : script(std::move(given)), hangs(script.hang_after.has_value()) {}

    std::string_view name() const override { return "file"; }
    backend::Support probe(const Topology&) override { return backend::Support::yes("scripted"); }
    std::vector<backend::Capability> capabilities() const override {
        backend::Capability read;
        read.from = PlaceKind::file;
        read.to = PlaceKind::host;
        read.from_memory = {MemoryKind::storage};
        read.to_memory = {MemoryKind::pinned, MemoryKind::pageable};
        read.reach = backend::Reach::storage;
        read.engine = "file I/O";
        read.max_gb_per_s = 50;
        backend::Capability write = read;
        std::swap(write.from, write.to);
        std::swap(write.from_memory, write.to_memory);
        return {read, write};
    }
    backend::Allocator* allocator() override { return this; }
    backend::MemorySet allocates(PlaceKind kind) const override {
        if (script.no_staging && kind == PlaceKind::host) return {MemoryKind::pinned};
        return {};
    }
    Result<Allocation> allocate(const Place&, Bytes, MemoryKind) override {
        return Error{ErrorCode::out_of_memory, "nothing left to pin", "fake", {}};
    }

    struct File {
        std::string bytes;
        std::uint64_t identity = 0;
    };

    Result<std::optional<backend::Description>> describe(const Buffer& buffer) override {
        if (!buffer.place().is_file()) return std::optional<backend::Description>{};
        std::lock_guard lock(mutex);
        const auto found = files.find(buffer.place().path());
        if (found == files.end() && !buffer.whole_file())
            return Error{ErrorCode::not_found, "there is no such file", buffer.place().path(), {}};
        backend::Description description{buffer.place(), MemoryKind::storage, 0, 0};
        if (found != files.end()) description.size = found->second.bytes.size();
        if (found != files.end()) description.identity = found->second.identity;
        return std::optional(description);
    }

    // Of a file: `target` holds what was written until it gets its name.
    class Attached final : public backend::Registration {
    public:
        Attached(FakeFiles& of, const Buffer& buffer, bool writes)
            : Registration(buffer), files(of), write(writes) {
            if (buffer.place().is_file()) files.max_open = std::max<int>(files.max_open, ++files.open);
            ++files.attached;
        }
        ~Attached() override {
            if (buffer().place().is_file()) --files.open;
            --files.attached;
        }
        Result<void> commit() override {
            const std::string& path = buffer().place().path();
            if (files.script.fail_commit && files.script.fail_commit(path))
                return Error{ErrorCode::no_space, "the name could not be given", path, {}};
            std::lock_guard lock(files.mutex);
            files.files[path] = {target, 77};
            files.committed.push_back(path);
            ++files.named;
            return {};
        }
        std::vector<std::string> notes() const override {
            return {files.script.notes_by_path ? fmt::format("scripted {}", buffer().place().path())
                                               : "scripted files"};
        }
        StorageBytes storage_bytes() const override { return {0, 0, moved}; }

        FakeFiles& files;
        const bool write;
        std::string target;
        Bytes moved = 0;
    };

    Result<std::unique_ptr<backend::Registration>> attach(const Buffer& buffer,
                                                          const backend::AttachOptions& options) override {
        if (script.open && buffer.place().is_file()) script.open(buffer.place().path());
        auto made = std::make_unique<Attached>(*this, buffer, options.access == backend::Access::write);
        if (buffer.place().is_file() && made->write) made->target.assign(options.expected_size, '?');
        return std::unique_ptr<backend::Registration>(std::move(made));
    }

    Result<backend::Progress> start(const backend::Piece& piece, backend::Flight& flight) override {
        const std::size_t number = pieces.size();
        pieces.push_back(piece);
        if (script.before) script.before(*this, number);
        const std::lock_guard lock(flying_);
        flights_.push_back({piece, script.looks, &flight});
        return backend::Progress::pending;
    }

    bool look() override { return script.told ? false : end_pieces(); }
    bool end_pieces() {
        std::vector<Flying> over;
        bool left = false;
        {
            const std::lock_guard lock(flying_);
            Bytes moved = bytes_moved;
            std::erase_if(flights_, [&](Flying& flying) {
                if ((hangs && moved >= *script.hang_after) || flying.looks-- > 0) return false;
                moved += flying.piece.size;
                over.push_back(flying);
                return true;
            });
            left = !flights_.empty();
        }
        for (const Flying& flying : over) flying.flight->end(move(flying.piece));
        return left;
    }

    // All that is in flight, which goes on.
    void abandon(const Error& error) {
        const std::lock_guard lock(flying_);
        for (const Flying& flying : flights_) flying.flight->abandon(error);
    }

    std::size_t in_flight() const {
        const std::lock_guard lock(flying_);
        return flights_.size();
    }

    Script script;
    std::atomic<bool> hangs;
    std::mutex mutex;  // guards the files, which a test may change meanwhile
    std::map<std::string, File> files;
    std::vector<std::string> committed;
    std::vector<backend::Piece> pieces;
    // What tests look at while the engine's thread drives too.
    std::atomic<Bytes> bytes_read{0};
    std::atomic<Bytes> bytes_moved{0};  // read or written
    std::atomic<std::size_t> named{0};
    std::atomic<int> open{0};
    std::atomic<int> max_open{0};
    std::atomic<int> attached{0};

private:
    struct Flying {
        backend::Piece piece;
        int looks = 0;
        backend::Flight* flight = nullptr;
    };

    Result<void> move(const backend::Piece& piece) {
        const bool write = piece.capability == 1;
        auto& file = dynamic_cast<Attached&>(write ? *piece.to : *piece.from);
        const Buffer& memory = (write ? piece.from : piece.to)->buffer();
        char* address = static_cast<char*>(memory.address()) + (write ? piece.from_offset : piece.to_offset);
        const Bytes offset = write ? piece.to_offset : piece.from_offset;
        const std::string& path = file.buffer().place().path();
        if (script.fail)
            if (auto error = script.fail(path, offset, piece.size)) return *error;
        std::lock_guard lock(mutex);
        file.moved += piece.size;
        bytes_moved += piece.size;
        if (write) {
            file.target.replace(offset, piece.size, address, piece.size);
            return {};
        }
        const std::string& bytes = file.write ? file.target : files[path].bytes;
        if (offset + piece.size > bytes.size())
            return Error{ErrorCode::end_of_file, "the file ended early", path, {}};
        // The room around the target may hold anything afterwards.
        std::memset(address - piece.room_before, 0xAB, piece.room_before);
        std::memset(address + piece.size, 0xAB, piece.room_after);
        std::memcpy(address, bytes.data() + offset, piece.size);
        bytes_read += piece.size;
        return {};
    }

    mutable std::mutex flying_;  // guards what follows
    std::vector<Flying> flights_;
};

// Brings the bytes of those files to GPUs by itself.
class DirectFiles final : public backend::Backend {
public:
    using Reaches = std::function<bool(const Place& gpu)>;
    DirectFiles(FakeFiles& files, Reaches to) : files_(files), to_(std::move(to)) {}

    std::string_view name() const override { return "direct"; }
    backend::Support probe(const Topology&) override { return backend::Support::yes("scripted"); }
    std::vector<backend::Capability> capabilities() const override {
        backend::Capability read = files_.capabilities().front();
        read.to = PlaceKind::gpu;
        read.to_memory = {MemoryKind::device};
        read.reach = backend::Reach::storage_gpu;
        read.engine = "direct storage";
        return {read};
    }
    backend::Support reaches(const Buffer&, const Buffer& to) override {
        return to_(to.place()) ? backend::Support::yes({})
                               : backend::Support::no("it does not like this GPU");
    }
    Result<std::unique_ptr<backend::Registration>> attach(const Buffer& buffer,
                                                          const backend::AttachOptions& options) override {
        return files_.attach(buffer, options);
    }
    Result<backend::Progress> start(const backend::Piece& piece, backend::Flight& flight) override {
        bytes_read += piece.size;
        return files_.start(piece, flight);
    }

    std::atomic<Bytes> bytes_read{0};

private:
    FakeFiles& files_;
    const Reaches to_;
};

// A plan as a table: stretches of files and where they belong, in the order of the files.
class Table final : public transfer::Placement {
public:
    struct Row {
        std::size_t file = 0;
        transfer::Run run;
        std::string name;
    };

    void runs(std::size_t file, transfer::FileRange range, std::vector<transfer::Run>& found) const override {
        for (const Row& row : rows) {
            if (row.file != file) continue;
            const Bytes begin = std::max(range.begin, row.run.file_offset);
            const Bytes end = std::min(range.end, row.run.file_offset + row.run.size);
            if (begin >= end) continue;
            found.push_back(
                {begin, end - begin, row.run.memory, row.run.memory_offset + (begin - row.run.file_offset)});
        }
        std::stable_sort(found.begin(), found.end(),
                         [](const auto& a, const auto& b) { return a.file_offset < b.file_offset; });
    }
    std::uint32_t memory_at(std::size_t file, Bytes offset) const override {
        for (const Row& row : rows)
            if (row.file == file && row.run.file_offset <= offset &&
                offset < row.run.file_offset + row.run.size)
                return row.run.memory;
        return transfer::Run::every_memory;
    }

    std::string name_of(std::size_t file, Bytes offset) const override {
        for (const Row& row : rows)
            if (row.file == file && offset >= row.run.file_offset &&
                offset < row.run.file_offset + row.run.size)
                return row.name;
        return "nothing";
    }

    std::vector<Row> rows;
};

inline constexpr std::uint32_t every = transfer::Run::every_memory;

// GPUs on one host, all joined by NVLink or none.
inline Topology machine_of(int gpus, bool nvlink) {
    Topology::Parts parts;
    parts.name = "test";
    parts.devices.push_back({DeviceKind::cpu, 0, "cpu:0", "", "", 0, 0});
    for (int gpu = 0; gpu < gpus; ++gpu) {
        parts.devices.push_back({DeviceKind::gpu, gpu, fmt::format("gpu:{}", gpu), "", "", 0, 1_GiB});
        parts.links.push_back({0, static_cast<DeviceId>(gpu + 1), LinkKind::pcie, 16, 10, 1});
    }
    for (int a = 0; nvlink && a < gpus; ++a)
        for (int b = a + 1; b < gpus; ++b)
            parts.links.push_back(
                {static_cast<DeviceId>(a + 1), static_cast<DeviceId>(b + 1), LinkKind::nvlink, 4, 100, 0.3});
    return *Topology::create(std::move(parts));
}

// An engine over scripted files and GPUs.
struct SpreadRig {
    struct Setup {
        int gpus = 1;
        bool nvlink = true;
        FakeFiles::Script files = {};
        DirectFiles::Reaches direct = {};  // the GPUs that storage reaches; null: there is no such backend
        FakeBackend::Script gpu = {};
        std::optional<bool> drive_beside = {};  // as transfer::Lookout's
    };

    explicit SpreadRig(Setup setup) : topology(machine_of(setup.gpus, setup.nvlink)) {
        auto owned_files = std::make_unique<FakeFiles>(std::move(setup.files));
        files = owned_files.get();
        registry.add(std::move(owned_files), topology);
        if (setup.direct) {
            auto owned_direct = std::make_unique<DirectFiles>(*files, std::move(setup.direct));
            direct = owned_direct.get();
            registry.add(std::move(owned_direct), topology);
        }
        setup.gpu.peers = true;
        auto owned = std::make_unique<FakeBackend>(std::move(setup.gpu));
        fake = owned.get();
        registry.add(std::move(owned), topology);
        engine = std::make_unique<transfer::Engine>(topology, registry, std::chrono::milliseconds(200),
                                                    setup.drive_beside);
        spread.placement = table;
    }

    // Contents that differ from byte to byte and file to file.
    static std::string content(Bytes size, std::size_t seed) { return text_of(size, seed + 1); }
    std::size_t add_file(Bytes size, std::vector<transfer::FileRange> ranges) {
        const std::size_t number = spread.files.size();
        const std::string path = fmt::format("/file{}", number);
        files->files[path] = {content(size, number), number + 1};
        spread.files.push_back({path, 0, std::move(ranges)});
        return number;
    }
    void add_memory(const Place& place, Bytes size) {
        memories.push_back(
            *fake->allocate(place, size, place.is_gpu() ? MemoryKind::device : MemoryKind::pageable));
        std::memset(memories.back().address(), 0xEE, size);
        spread.memories.push_back(memories.back().buffer());
    }
    void add_gpus(int count, Bytes size) {
        for (int gpu = 0; gpu < count; ++gpu) add_memory(Place::gpu(gpu), size);
    }
    void row(std::size_t file, Bytes file_offset, Bytes size, std::uint32_t memory, Bytes memory_offset) {
        table->rows.push_back({file,
                               {file_offset, size, memory, memory_offset},
                               fmt::format("tensor t{}", table->rows.size())});
    }
    // A file that every memory gets whole.
    void replicate(Bytes size) { row(add_file(size, {{0, size}}), 0, size, every, 0); }

    // Ends pieces, as threads of backends do.
    void end_pieces() {
        for (backend::Backend* backend : registry.usable()) backend->look();
    }
    std::shared_ptr<transfer::Activity> submit(const CopyOptions& options = {}) {
        return engine->submit_spread(spread, options);
    }
    Result<Receipt> run(const CopyOptions& options = {}) {
        auto job = submit(options);
        engine->wait(job, std::chrono::nanoseconds(0));
        return job->result();
    }

    // What each memory should hold.
    std::vector<std::string> expected() const {
        std::vector<std::string> all;
        for (const Allocation& memory : memories) all.emplace_back(memory.size(), static_cast<char>(0xEE));
        for (const Table::Row& row : table->rows)
            for (std::size_t m = 0; m < all.size(); ++m)
                if (row.run.memory == every || row.run.memory == m)
                    all[m].replace(row.run.memory_offset, row.run.size,
                                   files->files.at(spread.files[row.file].path).bytes, row.run.file_offset,
                                   row.run.size);
        return all;
    }
    bool arrived() const {
        const auto all = expected();
        for (std::size_t m = 0; m < all.size(); ++m)
            if (std::memcmp(all[m].data(), memories[m].address(), all[m].size()) != 0) return false;
        return true;
    }
    Bytes file_bytes() const {
        Bytes sum = 0;
        for (const auto& file : spread.files) sum += file.bytes();
        return sum;
    }
    bool nothing_left() const {
        return files->attached == 0 && fake->attached == 0 && files->in_flight() == 0;
    }

    Topology topology;
    backend::Registry registry;
    FakeFiles* files = nullptr;
    DirectFiles* direct = nullptr;
    FakeBackend* fake = nullptr;
    std::shared_ptr<Table> table = std::make_shared<Table>();
    std::vector<Allocation> memories;
    transfer::Spread spread;
    std::unique_ptr<transfer::Engine> engine;
};

// Of its stages.
inline std::vector<std::string> names_of(const Receipt& receipt) {
    std::vector<std::string> names;
    for (const Stage& stage : receipt.stages) names.push_back(stage.name);
    return names;
}

inline CopyOptions chunks_of(Bytes chunk) {
    CopyOptions options;
    options.chunk = chunk;
    return options;
}

}  // namespace sidestep::test
