// Which pieces of a node the engine's thread has to look for, and which the thread that began them has seen the end of.
#include "wire/pieces.hpp"

#include <gtest/gtest.h>

#include <functional>

#include "tests/unit/transfer/fake_backend.hpp"

namespace sidestep::wire {
namespace {

// Has no pieces: a test says what a look at them finds.
class Looked final : public backend::Backend {
public:
    explicit Looked(std::function<bool()> finds) : finds_(std::move(finds)) {}
    std::string_view name() const override { return "looked"; }
    backend::Support probe(const Topology&) override { return backend::Support::yes("scripted"); }
    std::vector<backend::Capability> capabilities() const override { return {}; }
    Result<std::unique_ptr<backend::Registration>> attach(const Buffer&,
                                                          const backend::AttachOptions&) override {
        return Error{ErrorCode::unsupported, "there is nothing here", {}, {}};
    }
    Result<backend::Progress> start(const backend::Piece&, backend::Flight&) override {
        return Error{ErrorCode::unsupported, "there is nothing here", {}, {}};
    }
    bool look() override { return finds_(); }

private:
    const std::function<bool()> finds_;
};

TEST(Pieces, TheEnginesThreadLooksForWhatIsLeft) {
    constexpr int never = -1;
    struct Row {
        const char* what;
        bool small;
        int ends_at;  // which look, from 1
        bool others;  // are in flight all the time
        bool left_to_the_thread;
        int looks;  // at least
    };
    for (const Row& row : {Row{"a small one that ends", true, 1, false, false, 2},
                           Row{"the same beside others", true, 1, true, true, 2},
                           Row{"a small one that does not end soon", true, never, false, true, 1},
                           Row{"one that is not small", false, never, false, true, 0}}) {
        SCOPED_TRACE(row.what);
        int looks = 0;
        Pieces* pieces = nullptr;
        backend::Registry registry;
        const Topology topology = test::machine();
        registry.add(std::make_unique<Looked>([&] {
                         if (++looks == row.ends_at) pieces->ended();
                         return row.others || row.ends_at == never || looks <= row.ends_at;
                     }),
                     topology);
        Pieces all(std::make_shared<transfer::Lookout>(registry));
        pieces = &all;
        all.begun(row.small);
        EXPECT_EQ(all.step(true), row.left_to_the_thread);
        EXPECT_GE(looks, row.looks);
        EXPECT_FALSE(all.step(true)) << "once";
    }
}

// Whoever looks is told that there is more.
TEST(Pieces, OneThatIsBegunInALookIsLeftToIt) {
    Pieces* pieces = nullptr;
    backend::Registry registry;
    const Topology topology = test::machine();
    registry.add(std::make_unique<Looked>([&] {
                     pieces->begun(true);
                     return true;
                 }),
                 topology);
    const auto lookout = std::make_shared<transfer::Lookout>(registry);
    Pieces all(lookout);
    pieces = &all;
    EXPECT_TRUE(lookout->look());
    EXPECT_TRUE(all.step(true));
}

}  // namespace
}  // namespace sidestep::wire
