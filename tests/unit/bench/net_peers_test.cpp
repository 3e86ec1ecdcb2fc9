// What programs that measure between two machines print.
#include "bench/net.hpp"

#include <gtest/gtest.h>

namespace sidestep::bench {
namespace {

// The parts of an answer of iperf 3.12 that are read, and some around them.
constexpr const char* iperf3 = R"json({
  "start": {"connected": [{"socket": 5, "remote_host": "10.0.0.7"}], "version": "iperf 3.12"},
  "intervals": [],
  "end": {"streams": [{"sender": {"bits_per_second": 1.0}}],
          "sum_sent": {"bytes": 2158000000, "bits_per_second": 17250000000.0},
          "sum_received": {"bytes": 2157445014, "bits_per_second": 16000000000.0}}
})json";

TEST(NetPeers, Iperf3) {
    const auto peer = parse_iperf3(iperf3);
    ASSERT_TRUE(peer) << peer.error().to_string();
    EXPECT_EQ(peer->tool, "iperf 3.12");
    EXPECT_DOUBLE_EQ(peer->gb_per_s, 2.0) << "what arrived counts";
    const auto nobody = parse_iperf3(R"({"start": {}, "end": {}, "error": "unable to connect to server"})");
    ASSERT_FALSE(nobody);
    EXPECT_EQ(nobody.error().message, "unable to connect to server");
}

TEST(NetPeers, Iperf3ThatSaysNothing) {
    for (const char* text : {"", "x", "[]", "{}", R"({"end": 1})", R"({"end": {"sum_received": 1}})",
                             R"({"end": {"sum_received": {"bits_per_second": "fast"}}})",
                             R"({"end": {"sum_received": {"bits_per_second": 0}}})",
                             R"({"end": {"sum_sent": {"bits_per_second": 1}}})"})
        EXPECT_FALSE(parse_iperf3(text)) << text;
}

// As 1.13 prints it, and as 1.18 does.
TEST(NetPeers, UcxPerftest) {
    const std::string head =
        "+--------------+--------------+------------------------------+---------------------+\n"
        "|     Test     | # iterations | 50.0%ile | average | overall |  average |  overall |\n";
    for (const char* line : {"                         200    117.322   121.945   122.000     8000.41    "
                             "1000.00        8200        8201\n",
                             "Final:                   200    117.322   121.945   122.000     8000.41    "
                             "1000.00        8200        8201\n"}) {
        const auto peer = parse_ucx_perftest(head + line);
        ASSERT_TRUE(peer) << peer.error().to_string();
        EXPECT_NEAR(peer->gb_per_s, 1.048576, 1e-9) << "MiB a second, of all iterations";
    }
    for (const char* line :
         {"", "200 1 2 3 4 5 6\n", "200 1 2 3 4 0 6 7\n", "200 1 2 3 4 x 6 7\n", "1 2 3 4 5 6 7 8 9\n"})
        EXPECT_FALSE(parse_ucx_perftest(head + line)) << line;
}

}  // namespace
}  // namespace sidestep::bench
