// Regions of memory of a GPU that an engine reaches: what goes straight there, and what goes by a slot.
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include "backends/host/host_backend.hpp"
#include "transfer/engine.hpp"
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
    explicit NotingLink(bool reaches) : reaches_(reaches) {}
    Result<void> add(int, const backend::SocketKeys&) override { return {}; }
    std::size_t sockets() const override { return 1; }
    Bytes direct_above() const override { return reaches_ ? small_frame : never; }
    void send(const Frame& frame, const void* payload, std::function<void()> sent) override {
        frames.push_back(frame);
        payloads.push_back(payload);
        if (sent) sent();
    }
    void look() override {}
    void resume(Resume) override {}
    void close(Error) override {}
    void end(Error) override {}
    std::vector<Frame> frames;
    std::vector<const void*> payloads;

private:
    const bool reaches_;
};

class SessionDevice : public testing::Test {
protected:
    SessionDevice() {
        registry.add(backends::host::create({}), topology);
        engine = std::make_unique<transfer::Engine>(topology, registry);
        slots = Slots::create(engine->machine().pool, std::make_shared<Pieces>(engine->machine().lookout),
                              Place::host(), MemoryKind::pinned)
                    .value();
        auto region = std::make_shared<Region>();
        region->size = region_bytes;
        region->readable = region->writable = true;
        region->slots_in = region->slots_out = slots;
        region->device_address = reinterpret_cast<unsigned char*>(memory.data());
        region->see_writes = [this] {
            ++seen;
            return sees;
        };
        number = session->grant(std::move(region));
    }
    void use(bool reaches) {
        link = std::make_shared<NotingLink>(reaches);
        session->use(link);
    }
    const char* where(Bytes offset, Bytes bytes) {
        const auto landing = session->landing({Frame::Kind::push, 1, number, offset, bytes});
        EXPECT_TRUE(landing && landing->kind == Landing::Kind::here);
        return landing ? static_cast<const char*>(landing->address) : nullptr;
    }
    bool in_slot(const char* address) const {
        const auto* const ring = static_cast<const char*>(slots->ring().address());
        return address >= ring && address < ring + slots->ring().size();
    }

    Topology topology = Topology::open("dgx-h100").value();
    backend::Registry registry;
    std::unique_ptr<transfer::Engine> engine;
    std::shared_ptr<Slots> slots;
    std::string memory = std::string(region_bytes, '#');
    int seen = 0;
    Result<void> sees;
    const std::shared_ptr<Session> session = std::make_shared<Session>("node7");
    std::shared_ptr<NotingLink> link;
    std::uint64_t number = 0;
};

TEST_F(SessionDevice, LargeFramesGoStraightThere) {
    use(true);
    EXPECT_EQ(where(10, small_frame + 1), memory.data() + 10);
    EXPECT_TRUE(in_slot(where(10, small_frame))) << "a processor puts it where it belongs";
    use(false);
    EXPECT_TRUE(in_slot(where(10, small_frame + 1))) << "so does every one of another engine";
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

TEST_F(SessionDevice, LargeAnswersComeStraightFromThere) {
    use(true);
    ASSERT_TRUE(session->arrived({Frame::Kind::pull, 1, number, 100, 5000}, {}));
    session->caught_up();
    ASSERT_EQ(link->frames.size(), 1u);
    EXPECT_EQ(link->frames[0], (Frame{Frame::Kind::push, 1, 0, 0, 5000}));
    EXPECT_EQ(link->payloads[0], memory.data() + 100);
}

}  // namespace
}  // namespace sidestep::wire
