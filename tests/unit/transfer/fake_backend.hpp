// A backend whose pieces end when a test says so.
#pragma once

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "backend/registry.hpp"

namespace sidestep::test {

// The machine that one FakeBackend serves: a GPU beside its host.
inline Topology machine() {
    Topology::Parts parts;
    parts.name = "test";
    parts.devices.push_back({DeviceKind::cpu, 0, "cpu:0", "", "", 0, 0});
    parts.devices.push_back({DeviceKind::gpu, 0, "gpu:0", "", "", 0, 1_GiB});
    parts.links.push_back({0, 1, LinkKind::pcie, 16, 50, 1});
    return *Topology::create(std::move(parts));
}

// One gpu (number 0) with memory that is host memory, one host; pieces between them are started, and end
// with the script's answer at the look after the first `looks`.
class FakeBackend final : public backend::Backend,
                          public backend::Allocator,
                          public backend::Batcher,
                          public backend::Streams {
public:
    struct Script {
        int looks = 1;  // before a piece ends
        std::optional<Error> fail_attach;
        std::optional<Error> fail_commit;
        std::string commit_note;  // what commit() has to say
        std::function<std::optional<Error>(std::size_t piece)> fail_start;
        std::function<std::optional<Error>(std::size_t piece)> fail_end;
        std::function<bool(std::size_t piece)> hang;  // never ends
        std::function<bool(std::size_t piece)> corrupt;
        std::function<std::optional<Error>(const backend::Piece&)> fail_piece;  // when it should have ended
        std::function<int(const backend::Piece&)> looks_of;                     // instead of `looks`
        bool peers = false;       // GPUs of any number, with peer access
        bool keeps = false;       // what a GPU has, it does not give back
        bool stage_only = false;  // no direct gpu <-> pageable host
        bool batches = false;     // takes start_batch(), and knows where its memory ends
        bool streams = false;     // takes pieces on callers' streams, and holds those
    };

    // One that a test opens and looks at.
    struct Gate {
        std::atomic<bool> reached{false};
        std::atomic<bool> open{false};
    };

    explicit FakeBackend(Script given) : script(std::move(given)) {}

    std::string_view name() const override { return "fake"; }
    backend::Support probe(const Topology&) override { return backend::Support::yes("scripted"); }
    std::vector<backend::Capability> capabilities() const override {
        using enum MemoryKind;
        const backend::MemorySet host{pinned};
        const backend::MemorySet any{pinned, pageable};
        const backend::MemorySet gpu{device};
        std::vector<backend::Capability> all{
            capability(PlaceKind::host, PlaceKind::gpu, host, gpu, backend::Reach::host_link),
            capability(PlaceKind::gpu, PlaceKind::host, gpu, host, backend::Reach::host_link),
            capability(PlaceKind::host, PlaceKind::host, any, any, backend::Reach::host_memory)};
        if (script.keeps) all[1].from_memory = {};
        if (script.peers) {
            all.push_back(capability(PlaceKind::gpu, PlaceKind::gpu, gpu, gpu, backend::Reach::peer_access));
            all.back().max_gb_per_s = 300;
        }
        return all;
    }
    backend::Allocator* allocator() override { return this; }
    backend::Batcher* batcher() override { return script.batches ? this : nullptr; }
    backend::Streams* streams() override { return script.streams ? this : nullptr; }
    backend::MemorySet allocates(PlaceKind kind) const override {
        if (kind == PlaceKind::host) return {MemoryKind::pinned, MemoryKind::pageable};
        if (kind == PlaceKind::gpu) return {MemoryKind::device};
        return {};
    }
    Result<std::optional<backend::Description>> describe(const Buffer& buffer) override {
        std::lock_guard lock(mutex_);
        ++described;
        if (script.batches) return describe_within(buffer);
        const bool pinned = pinned_.contains(buffer.address());
        const MemoryKind kind = buffer.place().is_gpu() ? MemoryKind::device
                                : pinned                ? MemoryKind::pinned
                                                        : MemoryKind::pageable;
        return std::optional<backend::Description>({buffer.place(), kind, buffer.size(), 0});
    }
    Result<Allocation> allocate(const Place& place, Bytes bytes, MemoryKind kind) override {
        std::lock_guard lock(mutex_);
        ++allocations;
        ++*live;
        const Bytes of_gpu = place.is_gpu() ? bytes : 0;
        *live_gpu_bytes += of_gpu;
        allocated += bytes;
        max_allocated = std::max(max_allocated, allocated);
        auto* memory = static_cast<char*>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096));
        if (kind == MemoryKind::pinned) pinned_.insert(memory);
        ranges_[memory] = {bytes, kind};
        return Allocation(Buffer::memory(place, memory, bytes), kind,
                          [memory, of_gpu, there = live, gpus = live_gpu_bytes] {
                              --*there;
                              *gpus -= of_gpu;
                              std::free(memory);
                          });
    }

    class FakeRegistration final : public backend::Registration {
    public:
        FakeRegistration(FakeBackend& backend, const Buffer& buffer)
            : Registration(buffer), backend_(backend) {
            ++backend_.attached;
        }
        ~FakeRegistration() override { --backend_.attached; }
        Result<void> commit() override {
            ++backend_.commits;
            if (backend_.script.fail_commit) return *backend_.script.fail_commit;
            if (!backend_.script.commit_note.empty()) notes_.push_back(backend_.script.commit_note);
            return {};
        }
        std::vector<std::string> notes() const override { return notes_; }

    private:
        FakeBackend& backend_;
        std::vector<std::string> notes_;
    };

    Result<std::unique_ptr<backend::Registration>> attach(const Buffer& buffer,
                                                          const backend::AttachOptions&) override {
        if (script.fail_attach) return *script.fail_attach;
        return std::unique_ptr<backend::Registration>(std::make_unique<FakeRegistration>(*this, buffer));
    }

    Result<backend::Progress> start(const backend::Piece& piece, backend::Flight& flight) override {
        std::lock_guard lock(mutex_);
        const std::size_t number = pieces.size();
        pieces.push_back(piece.size);
        if (script.fail_start)
            if (auto error = script.fail_start(number)) return *error;
        return fly({piece}, flight);
    }

    // One flight, and one number for the script.
    Result<backend::Progress> start_batch(std::span<const backend::Piece> batch,
                                          backend::Flight& flight) override {
        std::lock_guard lock(mutex_);
        const std::size_t number = pieces.size();
        Bytes bytes = 0;
        for (const backend::Piece& piece : batch) bytes += piece.size;
        pieces.push_back(bytes);
        batches.push_back(batch.size());
        if (script.fail_start)
            if (auto error = script.fail_start(number)) return *error;
        return fly({batch.begin(), batch.end()}, flight);
    }

    bool look() override {
        std::vector<std::pair<backend::Flight*, Result<void>>> over;
        bool left = false;
        {
            std::lock_guard lock(mutex_);
            std::erase_if(flights_, [&](Flying& flying) {
                const bool hangs = script.hang && script.hang(flying.number);
                if (hangs || flying.looks-- > 0) return false;
                over.emplace_back(flying.flight, move(flying));
                return true;
            });
            in_flight -= static_cast<int>(over.size());
            left = !flights_.empty();
        }
        for (auto& [flight, result] : over) flight->end(std::move(result));
        return left;
    }

    Result<std::unique_ptr<backend::Gate>> gate(void*) override {
        class Held final : public backend::Gate {
        public:
            explicit Held(std::shared_ptr<FakeBackend::Gate> gate) : gate_(std::move(gate)) {}
            ~Held() override { gate_->open = true; }
            Result<bool> ready() override { return gate_->reached.load(); }
            void open() override { gate_->open = true; }

        private:
            std::shared_ptr<FakeBackend::Gate> gate_;
        };
        std::lock_guard lock(mutex_);
        gates.push_back(std::make_shared<Gate>());
        return std::unique_ptr<backend::Gate>(std::make_unique<Held>(gates.back()));
    }
    std::optional<std::uint64_t> stream_key(void* stream) override {
        return reinterpret_cast<std::uintptr_t>(stream);
    }

    // All that is in flight, which goes on.
    void abandon(const Error& error) {
        std::lock_guard lock(mutex_);
        for (const Flying& flying : flights_) flying.flight->abandon(error);
    }

    // Until so many are in flight: how long an engine takes to get there is the machine's affair.
    void wait_for_flights(int number) const {
        for (int ms = 0; ms < 10'000 && in_flight < number; ++ms)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }

    Script script;
    std::vector<std::shared_ptr<Gate>> gates;  // in the order in which they were put on streams
    std::vector<Bytes> pieces;                 // sizes, in the order of start(); of a batch: all of it
    std::vector<std::size_t> batches;          // pieces of each start_batch()
    int described = 0;
    std::atomic<int> in_flight{0};
    int max_in_flight = 0;
    std::atomic<int> attached{0};
    std::atomic<int> commits{0};
    int allocations = 0;  // that were ever made
    const std::shared_ptr<std::atomic<Bytes>> live_gpu_bytes = std::make_shared<std::atomic<Bytes>>(0);
    const std::shared_ptr<std::atomic<int>> live = std::make_shared<std::atomic<int>>(0);  // not freed yet
    Bytes allocated = 0;
    Bytes max_allocated = 0;

private:
    struct Flying {
        std::size_t number;
        std::vector<backend::Piece> pieces;
        int looks;
        backend::Flight* flight;
    };
    struct Range {
        Bytes bytes;
        MemoryKind kind;
    };

    // With the mutex held, like the next two.
    backend::Progress fly(std::vector<backend::Piece> started, backend::Flight& flight) {
        const int looks = script.looks_of ? script.looks_of(started.front()) : script.looks;
        flights_.push_back({pieces.size() - 1, std::move(started), looks, &flight});
        max_in_flight = std::max(max_in_flight, ++in_flight);
        return backend::Progress::pending;
    }
    Result<void> move(const Flying& flying) const {
        if (script.fail_end)
            if (auto error = script.fail_end(flying.number)) return *error;
        if (script.fail_piece)
            if (auto error = script.fail_piece(flying.pieces.front())) return *error;
        for (const backend::Piece& piece : flying.pieces) {
            auto* to = static_cast<char*>(piece.to->buffer().address()) + piece.to_offset;
            const auto* from = static_cast<const char*>(piece.from->buffer().address()) + piece.from_offset;
            std::memcpy(to, from, piece.size);
            if (script.corrupt && script.corrupt(flying.number)) to[piece.size / 2] ^= 1;
        }
        return {};
    }
    Result<std::optional<backend::Description>> describe_within(const Buffer& buffer) const {
        auto* address = static_cast<char*>(buffer.address());
        const auto after = ranges_.upper_bound(address);
        const auto range = after == ranges_.begin() ? ranges_.end() : std::prev(after);
        const bool inside =
            range != ranges_.end() && address + buffer.size() <= range->first + range->second.bytes;
        if (!inside && buffer.place().is_gpu())
            return Error{ErrorCode::invalid_argument, "reaches past its allocation", buffer.to_string(), {}};
        const MemoryKind kind = inside ? range->second.kind : MemoryKind::pageable;
        return std::optional<backend::Description>({buffer.place(), kind, buffer.size(), 0});
    }

    backend::Capability capability(PlaceKind from, PlaceKind to, backend::MemorySet reads,
                                   backend::MemorySet writes, backend::Reach reach) const {
        backend::Capability capability;
        capability.from = from;
        capability.to = to;
        capability.from_memory = reads;
        capability.to_memory = writes;
        capability.reach = reach;
        capability.engine = "scripted engine";
        capability.max_gb_per_s = 10;
        capability.latency_us = 1;
        capability.streams = script.streams;
        return capability;
    }

    std::mutex mutex_;
    std::deque<Flying> flights_;
    std::set<void*> pinned_;
    std::map<char*, Range> ranges_;
};

}  // namespace sidestep::test
