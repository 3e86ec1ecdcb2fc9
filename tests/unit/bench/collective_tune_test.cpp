// Figures from measured times.
#include "bench/collective/tune.hpp"

#include <gtest/gtest.h>

namespace sidestep::bench::collective {
namespace {

// One-shot up to 4 KiB, two-phase up to 64 KiB, slices above; one-shot cannot carry more than 32 KiB. No
// lines: the GPUs are joined by PCIe, say.
TuneTimes usual() {
    TuneTimes times;
    for (Bytes bytes = 8; bytes <= 1_MiB; bytes *= 2) {
        const auto size = static_cast<double>(bytes);
        if (bytes <= 32_KiB) times[tuned_algorithms[0]][bytes] = 3 + size / 1e3;
        times[tuned_algorithms[1]][bytes] = 4 + size / 1.4e3 - (bytes > 4_KiB ? 2 : 0);
        times[tuned_algorithms[3]][bytes] = 70 + size / 2e5;
    }
    return times;
}

TEST(CollectiveTune, TheSizesAtWhichAlgorithmsChange) {
    TuneTimes times;
    const std::map<Bytes, std::vector<double>> measured{
        {8, {3, 4, 5, 9}},          {1_KiB, {3, 4, 5, 9}},     {8_KiB, {5, 4.5, 5, 9}},
        {64_KiB, {20, 6, 6.5, 9}},  {128_KiB, {0, 12, 8, 10}}, {256_KiB, {0, 20, 10, 11}},
        {512_KiB, {0, 30, 14, 12}}, {1_MiB, {0, 60, 0, 16}}};
    for (const auto& [bytes, us] : measured)
        for (std::size_t i = 0; i < us.size(); ++i)
            if (us[i] > 0) times[tuned_algorithms[i]][bytes] = us[i];
    const auto tuned = tuned_from(times, 4);
    ASSERT_TRUE(tuned.ok()) << tuned.error().to_string();
    EXPECT_EQ(tuned->one_shot_max, 1_KiB);
    EXPECT_EQ(tuned->packets_max, 64_KiB);
    EXPECT_EQ(tuned->lines_max, 256_KiB);
    EXPECT_EQ(tuned->lamport_max, 1u) << "not measured";
    EXPECT_DOUBLE_EQ(tuned->hop_us, 1);
    EXPECT_DOUBLE_EQ(tuned->launch_us, 2);
    // 512 KiB more in 4 us, one and a half times through the links.
    EXPECT_NEAR(tuned->link_gb_per_s, 512 * 1024 * 1.5 / 4 / 1000, 1e-9);
    EXPECT_EQ(tuned->push_gb_per_s, 0) << "not measured";
    times[pushed_algorithm] = {{512_KiB, 14}, {1_MiB, 17}};
    EXPECT_NEAR(tuned_from(times, 4)->push_gb_per_s, 512 * 1024 * 1.5 / 3 / 1000, 1e-9);
    EXPECT_FALSE(tuned->ring_gb_per_s) << "not measured";
    times[lamport_algorithm] = {{8, 2.9}, {1_KiB, 3.1}, {8_KiB, 4}, {64_KiB, 5}, {128_KiB, 8.5}};
    EXPECT_EQ(tuned_from(times, 4)->lamport_min, 1u);
    EXPECT_EQ(tuned_from(times, 4)->lamport_max, 64_KiB);
    times[lamport_algorithm] = {{8, 3.2}, {1_KiB, 3.1}, {8_KiB, 4}, {64_KiB, 5}, {128_KiB, 8.5}};
    EXPECT_EQ(tuned_from(times, 4)->lamport_min, 8_KiB) << "packets are quicker below";
    EXPECT_EQ(tuned_from(times, 4)->lamport_max, 64_KiB);
    EXPECT_NE(tuned_from(times, 4)->to_string().find("of floats one-shot Lamport from 8 KiB up to 64 KiB;"),
              std::string::npos);
    times[lamport_algorithm] = {{8, 5}, {1_KiB, 5}, {8_KiB, 9}};
    EXPECT_NE(tuned_from(times, 4)->to_string().find("; no one-shot Lamport;"), std::string::npos);
    EXPECT_EQ(tuned_from(times, 4)->packets_max, 64_KiB) << "of integers";
    EXPECT_NE(times_text(times).find("3.00 *"), std::string::npos) << times_text(times);
    EXPECT_NEAR(tuned->packet_gb_per_s, 512 * 1024 * 1.5 / 30 / 1000 * 1.5, 1e-9);
}

// As where links go through one root port: packets end where the ring begins to pay, not where slices do.
TEST(CollectiveTune, ARingIsOneOfThoseThatLargeSizesTake) {
    auto times = usual();
    for (Bytes bytes = 8; bytes <= 1_MiB; bytes *= 2) {
        const auto size = static_cast<double>(bytes);
        times[tuned_algorithms[3]][bytes] = 70 + size / 1e4;
        times[ring_algorithm][bytes] = 20 + size / 2e4;
    }
    const auto before = tuned_from(usual(), 4), after = tuned_from(times, 4);
    ASSERT_TRUE(before.ok() && after.ok());
    EXPECT_EQ(before->packets_max, 64_KiB);
    EXPECT_EQ(after->packets_max, 16_KiB);
    // 512 KiB more, one and a half times through the links.
    EXPECT_NEAR(after->ring_gb_per_s.value_or(0), 1.5 * 2e4 / 1e3, 1e-9);
    EXPECT_NE(after->to_json("m").find("\"ring_gb_per_s\": "), std::string::npos);
    EXPECT_EQ(before->to_json("m").find("ring_gb_per_s"), std::string::npos) << "stays what is built in";
    EXPECT_NE(after->to_string().find(" GB/s, a ring at 30\n"), std::string::npos) << after->to_string();
    EXPECT_NE(before->to_string().find(" GB/s\n"), std::string::npos) << before->to_string();
}

// One slow sample in the middle moves no threshold.
TEST(CollectiveTune, NoiseAtOneSizeDoesNotMoveThem) {
    auto times = usual();
    const auto before = tuned_from(times, 4);
    times[tuned_algorithms[0]][64] *= 1.5;
    const auto after = tuned_from(times, 4);
    ASSERT_TRUE(before.ok() && after.ok());
    EXPECT_EQ(after->one_shot_max, before->one_shot_max);
    EXPECT_EQ(after->packets_max, before->packets_max);
    EXPECT_GE(before->one_shot_max, 2_KiB);
    EXPECT_LT(before->one_shot_max, before->packets_max);
}

TEST(CollectiveTune, AnAlgorithmThatNeverPays) {
    auto times = usual();
    for (auto& [bytes, us] : times[tuned_algorithms[0]]) us += 1000;
    const auto tuned = tuned_from(times, 4);
    ASSERT_TRUE(tuned.ok());
    EXPECT_EQ(tuned->one_shot_max, 1u);  // 0 would leave it to the price
    EXPECT_GT(tuned->packets_max, 1u);
    EXPECT_EQ(tuned->lines_max, tuned->packets_max) << "no size of their own";
}

TEST(CollectiveTune, AnAlgorithmThatWasNotTaken) {
    auto times = usual();
    times.erase(tuned_algorithms[1]);
    const auto tuned = tuned_from(times, 4);
    ASSERT_FALSE(tuned.ok());
    EXPECT_NE(tuned.error().message.find("two-phase packets"), std::string::npos);
}

TEST(CollectiveTune, LinesOfOtherAlgorithmsDoNotCount) {
    Line line;
    line.call.bytes = 64;
    line.engine = "sidestep";
    line.us.values = {3, 2, 4, 900};
    line.path = "slices; memory: staged";
    TuneTimes times;
    add_times(times, tuned_algorithms[0], {line});
    EXPECT_TRUE(times.empty());
    Line in_place = line;
    in_place.call.in_place = true;
    in_place.call.bytes = 128;
    add_times(times, tuned_algorithms[3], {line, in_place});
    ASSERT_EQ(times[tuned_algorithms[3]].size(), 1u);
    EXPECT_EQ(times[tuned_algorithms[3]][64], 2);
    EXPECT_NE(times_text(times).find("2.00 *"), std::string::npos) << times_text(times);
}

TEST(CollectiveTune, FilesForceOneAlgorithm) {
    EXPECT_NE(forcing(tuned_algorithms[0]).find("\"one_shot_max\": 1099511627776"), std::string::npos);
    EXPECT_NE(forcing(tuned_algorithms[1]).find("\"one_shot_max\": 1,"), std::string::npos);
    EXPECT_NE(forcing(tuned_algorithms[2]).find("\"lines_max\": 1099511627776"), std::string::npos);
    EXPECT_NE(forcing(tuned_algorithms[2]).find("\"packets_max\": 1,"), std::string::npos);
    EXPECT_NE(forcing(tuned_algorithms[3]).find("\"lines_max\": 1\n"), std::string::npos)
        << "and says nothing of links";
    EXPECT_NE(forcing(ring_algorithm).find("\"link_gb_per_s\": 0.001"), std::string::npos);
    EXPECT_NE(forcing(tuned_algorithms[3]).find("\"push_gb_per_s\": 0.0,"), std::string::npos);
    EXPECT_NE(forcing(tuned_algorithms[3]).find("\"lamport_max\": 1,"), std::string::npos);
    EXPECT_NE(forcing(lamport_algorithm).find("\"lamport_max\": 1099511627776,"), std::string::npos);
    EXPECT_NE(forcing(pushed_algorithm).find("\"push_gb_per_s\": 1000000.0,"), std::string::npos);
    EXPECT_NE(forcing(pushed_algorithm).find("\"ring_gb_per_s\": 0.0,"), std::string::npos);
    EXPECT_NE(forcing(ring_algorithm).find("\"ring_gb_per_s\": 1000000.0,"), std::string::npos);
    Tuned tuned;
    tuned.launch_us = 2;
    tuned.push_gb_per_s = 380;
    tuned.lamport_min = 1024;
    tuned.lamport_max = 2048;
    tuned.packets_max = 65536;
    tuned.lines_max = 131072;
    const std::string text = tuned.to_json("live");
    for (const char* part : {"\"version\": 1", "\"machine\": \"live\"", "\"launch_us\": 2",
                             "\"push_gb_per_s\": 380", "\"lamport_min\": 1024", "\"lamport_max\": 2048",
                             "\"packets_max\": 65536", "\"lines_max\": 131072"})
        EXPECT_NE(text.find(part), std::string::npos) << text;
}

}  // namespace
}  // namespace sidestep::bench::collective
