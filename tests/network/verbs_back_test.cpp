// Copies over RDMA whose cards go down and come back, in a virtual machine (tests/vm/jobs/verbs): SIDESTEP_TEST_NETDEV and
// SIDESTEP_TEST_OTHER_NETDEV name the network devices of its two cards.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "tests/network/nodes.hpp"

namespace sidestep {
namespace {

class VerbsBack : public test::Nodes {
protected:
    void SetUp() override {
        for (const char* name : {"SIDESTEP_TEST_NETDEV", "SIDESTEP_TEST_OTHER_NETDEV"})
            if (std::getenv(name) == nullptr) GTEST_SKIP() << name << " names no device";
    }
    static void set(const char* device, const char* state) {
        ASSERT_EQ(std::system(fmt::format("ip link set {} {}", std::getenv(device), state).c_str()), 0);
    }
    // There and back; the notes of both, one a line.
    std::string copy(const Buffer& there) const {
        const std::string text = test::text_of(there.size(), ++turn_);
        std::string back(there.size(), '?');
        const auto put = here->copy(Buffer::host(text.data(), text.size()), there).wait();
        EXPECT_TRUE(put) << put.error().to_string();
        const auto get = here->copy(there, Buffer::host(back.data(), back.size())).wait();
        EXPECT_TRUE(get) << get.error().to_string();
        EXPECT_TRUE(back == text);
        std::string notes;
        for (const auto* one : {&put, &get})
            if (*one) notes += fmt::format("{}\n", fmt::join((*one)->notes, "\n"));
        fmt::print("{}\n--\n", notes);
        return notes;
    }
    static bool says(const std::string& notes, const char* words) {
        return notes.find(words) != std::string::npos;
    }

private:
    mutable unsigned turn_ = 0;
};

// Many small pieces, there and back, each where it belongs; how quick they are beside one copy is printed, not judged.
TEST_F(VerbsBack, SmallPiecesOfABatch) {
    constexpr Bytes size = 16_MiB;
    const std::string text = test::text_of(size, 3);
    for (const Bytes piece : {Bytes{8}, Bytes{4_KiB}, Bytes{16_KiB}, size}) {
        const std::size_t count = std::min<std::size_t>(size / piece, 2000);
        const auto memory = here->allocate(Place::host().on("n"), size);
        ASSERT_TRUE(memory) << memory.error().to_string();
        std::string back(size, '?');
        std::vector<BatchItem> put, get;
        // From their end on to the beginning, so that no two are neighbours in their order.
        for (std::size_t i = 0; i < count; ++i) {
            const Buffer far = memory->buffer().slice((count - 1 - i) * piece, piece);
            put.push_back({Buffer::host(text.data() + i * piece, piece), far});
            get.push_back({far, Buffer::host(back.data() + i * piece, piece)});
        }
        for (const auto* batch : {&put, &get}) {
            const auto begin = std::chrono::steady_clock::now();
            const auto done = here->copy_batch(*batch).wait();
            ASSERT_TRUE(done) << done.error().to_string();
            const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
            fmt::print("batch: {} pieces of {} B {}: {:.1f} MB/s, {:.0f} a second\n", count, piece,
                       batch == &put ? "there" : "back",
                       static_cast<double>(count * piece) / 1e6 / took.count(),
                       static_cast<double>(count) / took.count());
        }
        EXPECT_TRUE(back.substr(0, count * piece) == text.substr(0, count * piece)) << piece;
    }
}

TEST_F(VerbsBack, FromOneCardToTheOtherToSocketsAndBack) {
    constexpr Bytes size = 12_MiB + 1234;
    const auto memory = here->allocate(Place::gpu(1).on("n"), size);
    ASSERT_TRUE(memory) << memory.error().to_string();
    const Buffer there = memory->buffer();
    const std::string both = copy(there);
    EXPECT_TRUE(says(both, "n was reached by verbs (rxe0, rxe1)")) << both;
    EXPECT_TRUE(says(both, "over RDMA straight into gpu:1 and out of it, by its address")) << both;
    set("SIDESTEP_TEST_NETDEV", "down");
    // It may take a copy for anybody to see it.
    const std::string fell = copy(there) + copy(there);
    EXPECT_TRUE(says(fell, "n was reached by verbs (rxe1)")) << fell;
    EXPECT_TRUE(says(fell, "the connection to n was lost once")) << fell;
    EXPECT_FALSE(says(fell, "tcp")) << fell;
    set("SIDESTEP_TEST_OTHER_NETDEV", "down");
    const std::string sockets = copy(there) + copy(there);
    EXPECT_TRUE(says(sockets, "n was reached by tcp")) << sockets;
    set("SIDESTEP_TEST_OTHER_NETDEV", "up");
    set("SIDESTEP_TEST_NETDEV", "up");
    // It is tried again after 5 s, and each time that fails after twice as long.
    const auto until = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    std::string again;
    while (!says(again, "n is reached by verbs again") && std::chrono::steady_clock::now() < until) {
        std::this_thread::sleep_for(std::chrono::milliseconds(500));
        again = copy(there.slice(0, 1_MiB));
    }
    EXPECT_TRUE(says(again, "n was reached by verbs (")) << again;
    EXPECT_TRUE(says(again, "n is reached by verbs again")) << again;
    EXPECT_FALSE(says(again, "lost")) << again;
    EXPECT_TRUE(says(copy(there), "n was reached by verbs ("));
}

}  // namespace
}  // namespace sidestep
