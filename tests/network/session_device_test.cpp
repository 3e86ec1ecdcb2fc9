// Regions of memory of a GPU that an engine reaches: what goes straight there, and what goes by a slot.
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include "backends/host/host_backend.hpp"
#include "tests/network/session_rig.hpp"
#include "transfer/engine.hpp"
#include "wire/own_memory.hpp"
#include "wire/session.hpp"

namespace sidestep::wire {
namespace {

using backend::Frame;
using backend::Landing;

constexpr Bytes region_bytes = Bytes{1} << 20;
constexpr Bytes small_frame = 4096;

// Writes down what it is given. Reaches memory of GPUs, or does not.
class NotingLink final : public backend::Link {
public:
    explicit NotingLink(bool reaches, std::string_view engine = {}) : reaches_(reaches), engine_(engine) {}
    bool scatters() const override { return reaches_; }
    std::string_view engine() const override { return engine_; }
    Result<void> add(int, const backend::SocketKeys&) override { return {}; }
    std::size_t sockets() const override { return 1; }
    Bytes direct_above() const override { return reaches_ ? small_frame : never; }
    void send(const Frame& frame, const void* payload, std::function<void()> sent) override {
        {
            std::lock_guard lock(mutex_);
            frames.push_back(frame);
            payloads.push_back(payload);
            texts.emplace_back(static_cast<const char*>(payload), payload != nullptr ? frame.size : 0);
        }
        if (sent && takes) sent();
    }
    // A card that reads a GPU sends what lies in one part alone.
    void send_all(std::span<const backend::Outgoing> all, std::function<void()> sent) override {
        for (const backend::Outgoing& one : all) EXPECT_TRUE(one.parts.empty()) << one.frame.size;
        Link::send_all(all, std::move(sent));
    }
    std::size_t count() const {
        std::lock_guard lock(mutex_);
        return frames.size();
    }
    void look() override {}
    void resume(Resume) override {}
    void close(Error) override {}
    void end(Error) override {}
    std::vector<Frame> frames;
    std::vector<const void*> payloads;
    std::vector<std::string> texts;
    bool takes = true;  // what it is given is sent at once; else never

private:
    const bool reaches_;
    const std::string_view engine_;
    mutable std::mutex mutex_;
};

class SessionDevice : public testing::Test {
protected:
    SessionDevice() {
        registry.add(backends::host::create({}), topology);
        engine = std::make_unique<transfer::Engine>(topology, registry);
        pieces = std::make_shared<Pieces>(engine->machine().lookout);
        engine->drive_in_background(pieces);
        slots = Slots::create(engine->machine().pool, pieces, Place::host(), MemoryKind::pinned,
                              std::chrono::hours(1))
                    .value();
        backend::Backend* const host = registry.find("host");
        auto end = host->attach(Buffer::memory(Place::host(), memory.data(), memory.size()), {}).value();
        auto ring = slots->attach(*host, backend::Access::read).value();
        region = std::make_shared<Region>();
        region->in = Way{host, 0, std::move(end), std::move(ring), true};
        region->size = region_bytes;
        region->readable = region->writable = true;
        region->slots_in = region->slots_out = slots;
        region->device_address = reinterpret_cast<unsigned char*>(memory.data());
        region->reached = {{{}, nullptr}};
        region->see_writes = [this] {
            ++seen;
            return sees;
        };
        number = session->grant(region);
    }
    // A piece's end may be told a moment before its slot is back.
    ~SessionDevice() override {
        EXPECT_TRUE(!slots || test::comes([&] { return slots->idle(); }));
        pieces->stop();
    }
    void use(bool reaches, std::string_view by = {}) {
        link = std::make_shared<NotingLink>(reaches, by);
        session->use(link);
    }
    const char* where(Bytes offset, Bytes bytes) {
        const auto landing = session->landing({Frame::Kind::push, 1, number, offset, bytes});
        EXPECT_TRUE(landing && landing->kind == Landing::Kind::here);
        return landing ? static_cast<const char*>(landing->address) : nullptr;
    }
    void wait_for_frames(std::size_t count) const {
        const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        while (link->count() < count && std::chrono::steady_clock::now() < until) std::this_thread::yield();
        EXPECT_EQ(link->count(), count);
    }
    bool in_slot(const char* address) const {
        const auto* const ring = static_cast<const char*>(slots->ring().address());
        return address >= ring && address < ring + slots->ring().size();
    }

    Topology topology = Topology::open("dgx-h100").value();
    backend::Registry registry;
    std::unique_ptr<transfer::Engine> engine;
    std::shared_ptr<Pieces> pieces;
    std::shared_ptr<Slots> slots;
    std::string memory = std::string(region_bytes, '#');
    int seen = 0;
    Result<void> sees;
    const std::shared_ptr<Session> session = std::make_shared<Session>("node7");
    std::shared_ptr<NotingLink> link;
    std::shared_ptr<Region> region;
    std::uint64_t number = 0;
};

TEST_F(SessionDevice, LargeFramesGoStraightThere) {
    use(true);
    EXPECT_EQ(where(10, small_frame + 1), memory.data() + 10);
    EXPECT_TRUE(in_slot(where(10, small_frame))) << "a processor puts it where it belongs";
    use(false);
    EXPECT_TRUE(in_slot(where(10, small_frame + 1))) << "so does every one of sockets";
    use(true, "another");
    EXPECT_TRUE(in_slot(where(10, small_frame + 1))) << "and of an engine that it is not ready for";
}

// Not before the GPU sees them.
TEST_F(SessionDevice, TheyAreConfirmedWhenTheyAreSeen) {
    use(true);
    const Frame push{Frame::Kind::push, 1, number, 10, small_frame + 1};
    auto landing = session->landing(push).value();
    EXPECT_EQ(seen, 0);
    ASSERT_TRUE(session->arrived(push, std::move(landing)));
    EXPECT_EQ(seen, 1);
    ASSERT_EQ(link->frames.size(), 1u);
    EXPECT_EQ(link->frames[0].kind, Frame::Kind::confirm);
    sees = Error{ErrorCode::device_error, "the GPU is gone", "test", {}};
    landing = session->landing(push).value();
    ASSERT_TRUE(session->arrived(push, std::move(landing)));
    ASSERT_EQ(link->frames.size(), 2u);
    EXPECT_EQ(link->frames[1].kind, Frame::Kind::fault);
}

// A processor has received them. What a card brought waits for nothing.
TEST_F(SessionDevice, LargePushesBySocketsWaitForThoseThatCome) {
    constexpr Bytes half = region_bytes / 2;
    const Frame first{Frame::Kind::push, 1, number, 0, half},
        second{Frame::Kind::push, 1, number, half, half};
    for (const bool by_card : {false, true}) {
        use(by_card, "another");
        auto one = session->landing(first).value(), other = session->landing(second).value();
        ASSERT_TRUE(session->arrived(first, std::move(one)));
        by_card ? wait_for_frames(1) : std::this_thread::sleep_for(std::chrono::milliseconds(50));
        EXPECT_EQ(link->count(), by_card ? 1u : 0u);
        ASSERT_TRUE(session->arrived(second, std::move(other)));
        wait_for_frames(2);
    }
}

TEST_F(SessionDevice, LargeAnswersComeStraightFromThere) {
    use(true);
    ASSERT_TRUE(session->arrived({Frame::Kind::pull, 1, number, 100, 5000}, {}));
    session->caught_up();
    ASSERT_EQ(link->frames.size(), 1u);
    EXPECT_EQ(link->frames[0], (Frame{Frame::Kind::push, 1, 0, 0, 5000}));
    EXPECT_EQ(link->payloads[0], memory.data() + 100);
}

// A processor would have to put them together, and cannot read them.
TEST_F(SessionDevice, PlacesThatAreNoNeighboursComeOneByOneFromThere) {
    use(true);
    const std::vector<backend::RegionPart> places{
        {100, 5000}, {20'000, 6000}, {26'000, 7000}, {90'000, 8000}};
    const Frame list{Frame::Kind::places, 1, number, 0, backend::to_bytes(places).size()};
    auto told = session->landing(list).value();
    std::memcpy(told.address, backend::to_bytes(places).data(), list.size);
    ASSERT_TRUE(session->arrived(list, std::move(told)));
    ASSERT_TRUE(session->arrived({Frame::Kind::gather, 1, number, 0, 26'000}, {}));
    session->caught_up();
    Bytes at = 0;
    ASSERT_EQ(link->frames.size(), places.size());
    for (std::size_t i = 0; i < places.size(); at += places[i++].size) {
        EXPECT_EQ(link->frames[i], (Frame{Frame::Kind::push, 1, 0, at, places[i].size}));
        EXPECT_EQ(link->payloads[i], memory.data() + places[i].offset);
    }
}

// One of a file has no address, so what a client names as the offset says nothing of where it landed.
TEST_F(SessionDevice, AnOffsetThatIsAnAddressOfASlotIsNoAddress) {
    auto file = std::make_shared<Region>(*region);
    file->size = Buffer::whole;
    file->device_address = nullptr;
    file->see_writes = nullptr;
    number = session->grant(std::move(file));
    use(false);
    const auto at = reinterpret_cast<std::uintptr_t>(slots->ring().address());
    for (std::size_t slot = 0; slot < Slots::count; ++slot) {
        const Frame push{Frame::Kind::push, 1, number, at + slot * backend::max_push, 10};
        auto landing = session->landing(push).value();
        ASSERT_EQ(landing.kind, Landing::Kind::here);
        ASSERT_TRUE(session->arrived(push, std::move(landing)));
        wait_for_frames(slot + 1);
        EXPECT_EQ(link->frames[slot].kind, Frame::Kind::fault) << "it lies outside of the memory";
    }
}

// Memory of a GPU of this end.
class SessionOwnMemory : public SessionDevice {
protected:
    static constexpr Bytes bytes = backend::max_push + 100;
    SessionOwnMemory() {
        session->outlive_links([](const Error&) {});
        std::vector<std::unique_ptr<backend::NetworkEngine>> all;
        all.push_back(test::make_engine(1));
        engines = std::make_unique<Engines>(std::move(all));
        own = std::make_unique<OwnMemory>(topology, registry, *engine, *engines,
                                          [this] { session->go_on_with_slots(); });
        gpu = transfer::allocate(registry, Place::gpu(0), bytes, MemoryKind::device).value();
        std::memcpy(gpu.buffer().address(), text.data(), bytes);
    }
    // What lies in the engine's pool goes before it, and the memory that the engine moves behind it.
    ~SessionOwnMemory() override {
        own.reset();
        session->withdraw(number);
        region.reset();
        slots.reset();
        engine.reset();
    }
    std::shared_ptr<Region> own_region(backend::Access access) {
        backend::AttachOptions options;
        options.access = access;
        std::string way;
        auto made = own->region(gpu.buffer(), options, way).value();
        made->reached = {{{}, nullptr}};
        made->see_writes = [this] {
            ++seen;
            return sees;
        };
        return made;
    }
    unsigned char* address() const { return static_cast<unsigned char*>(gpu.buffer().address()); }
    std::string content() const { return {reinterpret_cast<const char*>(address()), bytes}; }
    Result<void> arrive(const Frame& frame) { return session->arrived(frame, {}); }

    const std::string text = sidestep::test::text_of(bytes, 1);
    std::unique_ptr<Engines> engines;
    std::unique_ptr<OwnMemory> own;
    Allocation gpu;
    test::Moving moving;
};

// And over a link that reaches no such memory, when the first has ended, all of it by slots.
TEST_F(SessionOwnMemory, IsPushedStraightOrBySlots) {
    use(true);
    link->takes = false;
    ASSERT_TRUE(test::begun(
        moving, session->push(address(), 7, 30, bytes, moving.flight, own_region(backend::Access::read))));
    ASSERT_TRUE(test::comes([&] { return link->count() == 2; }));
    EXPECT_EQ(link->frames[0], (Frame{Frame::Kind::push, 1, 7, 30, backend::max_push, 0, 0, 0}));
    EXPECT_EQ(link->payloads[0], address());
    EXPECT_EQ(link->frames[1],
              (Frame{Frame::Kind::push, 1, 7, 30 + backend::max_push, 100, 0, 0, backend::max_push}));
    EXPECT_NE(link->payloads[1], address() + backend::max_push) << "a processor would read it";
    EXPECT_EQ(link->texts[0] + link->texts[1], text);
    session->ended(test::some_error());
    ASSERT_TRUE(session->settle(std::chrono::steady_clock::now() + std::chrono::seconds(10)));
    link = std::make_shared<NotingLink>(false);
    ASSERT_TRUE(session->renew(link) && session->replay());
    ASSERT_TRUE(test::comes([&] { return link->count() == 2; }));
    EXPECT_NE(link->payloads[0], address()) << "sockets read it with a processor";
    EXPECT_EQ(link->texts[0] + link->texts[1], text);
    EXPECT_EQ(moving.ends, 0);
    ASSERT_TRUE(arrive({Frame::Kind::confirm, 1, 0, 0, bytes}));
    EXPECT_TRUE(moving.over());
    EXPECT_EQ(moving.code(), 0);
}

// What came straight is seen by the GPU, and what came into a slot is in its memory, before the flight ends.
TEST_F(SessionOwnMemory, IsPulledStraightOrBySlots) {
    use(true);
    const auto into = own_region(backend::Access::write);
    std::memset(gpu.buffer().address(), '#', bytes);
    ASSERT_TRUE(session->pull(7, 0, bytes, address(), moving.flight, into));
    for (const auto& [at, size] : {std::pair{Bytes{0}, backend::max_push}, {backend::max_push, Bytes{100}}}) {
        const Frame answer{Frame::Kind::push, 1, 0, at, size};
        auto landing = session->landing(answer);
        ASSERT_TRUE(landing && landing->kind == Landing::Kind::here);
        EXPECT_EQ(landing->address == address() + at, size > small_frame);
        EXPECT_EQ(moving.ends, 0);
        std::memcpy(landing->address, text.data() + at, size);
        ASSERT_TRUE(session->arrived(answer, std::move(*landing)));
    }
    EXPECT_EQ(seen, 1);
    EXPECT_TRUE(moving.over());
    EXPECT_EQ(moving.code(), 0);
    EXPECT_TRUE(content() == text);
}

// Moves nothing until it is told to.
class Waiting final : public backend::Backend {
public:
    std::string_view name() const override { return "waiting"; }
    backend::Support probe(const Topology&) override { return backend::Support::yes({}); }
    std::vector<backend::Capability> capabilities() const override { return {}; }
    Result<std::unique_ptr<backend::Registration>> attach(const Buffer& buffer,
                                                          const backend::AttachOptions&) override {
        return std::make_unique<backend::Registration>(buffer);
    }
    Result<backend::Progress> start(const backend::Piece&, backend::Flight& flight) override {
        under_way = &flight;
        return backend::Progress::pending;
    }
    backend::Flight* under_way = nullptr;
};

// Whoever is told of the end may free the memory.
TEST_F(SessionOwnMemory, NoEndIsToldWhileASlotMovesIt) {
    for (const bool in : {false, true}) {
        const auto alone = std::make_shared<Session>("node7");
        link = std::make_shared<NotingLink>(false);
        alone->use(link);
        Waiting waiting;
        const auto mine = own_region(in ? backend::Access::write : backend::Access::read);
        auto& way = in ? mine->in : mine->out;
        way->backend = &waiting;
        test::Moving piece;
        if (in) {
            ASSERT_TRUE(alone->pull(7, 0, 5000, address(), piece.flight, mine));
            const Frame answer{Frame::Kind::push, 1, 0, 0, 5000};
            ASSERT_TRUE(alone->arrived(answer, alone->landing(answer).value()));
        } else {
            ASSERT_TRUE(test::begun(piece, alone->push(address(), 7, 0, 5000, piece.flight, mine)));
        }
        ASSERT_NE(waiting.under_way, nullptr);
        alone->ended(test::some_error());
        EXPECT_EQ(piece.ends, 0);
        waiting.under_way->end({});
        EXPECT_TRUE(piece.over());
        EXPECT_NE(piece.code(), 0);
    }
}

TEST_F(SessionOwnMemory, FailsWhereTheGpuDoesNotSeeIt) {
    use(true);
    sees = Error{ErrorCode::device_error, "the GPU is gone", "test", {}};
    ASSERT_TRUE(session->pull(7, 0, 5000, address(), moving.flight, own_region(backend::Access::write)));
    const Frame answer{Frame::Kind::push, 1, 0, 0, 5000};
    ASSERT_TRUE(session->arrived(answer, session->landing(answer).value()));
    EXPECT_TRUE(moving.over());
    EXPECT_EQ(moving.code(), static_cast<int>(ErrorCode::device_error));
}

}  // namespace
}  // namespace sidestep::wire
