// How quick a link over an RDMA card is: printed, not judged; tests/vm/jobs/verbs prints the figures of perftest beside them.
// A program of its own, since it is optimised: in one with tests the linker takes templates that are not.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include "tests/contents.hpp"
#include "tests/network/verbs_rig.hpp"

namespace sidestep::wire {
namespace {

using test::Clock;
using test::Frame;
using test::one_mib;

TEST_F(Verbs, Speed) {
    join(4 * one_mib);
    const std::string bytes = sidestep::test::text_of(4 * one_mib, 1);
    std::vector<std::shared_ptr<const void>> kept;
    std::atomic<std::uint64_t> sent{0};  // told of later than the bytes come
    for (const bool prepared : {true, false}) {
        kept.clear();
        if (prepared) kept.push_back(engine->prepare(const_cast<char*>(bytes.data()), bytes.size()).value());
        if (prepared) kept.push_back(engine->prepare(targets[1]->data(), bytes.size()).value());
        for (const Bytes part : {Bytes{64} << 10, Bytes{256} << 10, one_mib}) {
            const Bytes before = targets[1]->came;
            const auto begin = Clock::now();
            int rounds = 0;
            for (; Clock::now() - begin < std::chrono::milliseconds(500); ++rounds) {
                push(0, bytes, part, sent);
                const Bytes so_far = before + static_cast<Bytes>(rounds) * bytes.size();
                ASSERT_TRUE(test::comes([&] { return targets[1]->came >= so_far; }));
            }
            const Bytes all = before + static_cast<Bytes>(rounds) * bytes.size();
            ASSERT_TRUE(test::comes([&] { return targets[1]->came == all; }));
            const std::chrono::duration<double> took = Clock::now() - begin;
            fmt::print("speed: {} B in parts, {}: {:.1f} MB/s\n", part, prepared ? "prepared" : "copied",
                       static_cast<double>(all - before) / 1e6 / took.count());
        }
    }
    for (const bool both_look : {true, false}) {
        constexpr int trips = 300;
        std::atomic<std::uint64_t> before = targets[0]->frames.load();
        std::atomic<bool> over{false};
        targets[1]->arrives = [&](const Frame& frame) {
            links[1]->send(frame, bytes.data(), {});
            return Result<void>();
        };
        std::thread looker([&] {
            for (; both_look && !over; std::this_thread::yield()) links[1]->look();
        });
        std::vector<double> took;
        for (int i = 0; i < trips; ++i) {
            const auto begin = Clock::now();
            links[0]->send({Frame::Kind::push, 1, 1, 0, 8}, bytes.data(), {});
            // As whoever waits for a copy does.
            for (; targets[0]->frames == before + static_cast<std::uint64_t>(i); std::this_thread::yield())
                links[0]->look();
            took.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
        }
        over = true;
        looker.join();
        std::sort(took.begin(), took.end());
        fmt::print(
            "speed: 8 B there and back, {}: {:.1f} us; of ten the quickest {:.1f}, the slowest {:.1f}\n",
            both_look ? "both look" : "one looks", took[trips / 2], took[trips / 10], took[trips * 9 / 10]);
        targets[1]->arrives = {};
    }
    end();
}

}  // namespace
}  // namespace sidestep::wire
