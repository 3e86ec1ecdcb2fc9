// The trial of every pair, and what a machine does with its report. The rates of a real one are for GPUs;
// what a corrupting driver looks like is tested over the made-up driver (tests/fake_cuda).
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>

#include <sidestep/sidestep.hpp>

namespace sidestep {
namespace {

Context open_emulated() {
    auto context = Context::open({"dgx-h100", ""});
    EXPECT_TRUE(context.ok());
    return std::move(*context);
}

TEST(Probe, LooksAtEveryDirectionOfAnEmulatedMachine) {
    const Context context = open_emulated();
    const auto report = probe_pairs(context, {64 * 1024, 1});
    ASSERT_TRUE(report.ok()) << report.error().to_string();
    EXPECT_TRUE(report->emulated);
    EXPECT_EQ(report->pairs.size(), 8U * 7 * 2);
    for (const PairProbe& pair : report->pairs) {
        EXPECT_TRUE(pair.direct) << pair.refusal;
        EXPECT_TRUE(pair.intact);
        EXPECT_GT(pair.gb_per_s, 0);
        EXPECT_GT(pair.bounce_gb_per_s, 0);
        EXPECT_GT(pair.expected_gb_per_s, 300);
    }
    EXPECT_NE(report->to_string().find("emulated"), std::string::npos);
}

TEST(Probe, NeedsTwoGpusAndNotThousands) {
    const auto laptop = Context::open({"laptop", ""});
    ASSERT_TRUE(laptop.ok());
    EXPECT_EQ(probe_pairs(*laptop).error().code, ErrorCode::unsupported);
    const auto cluster = Context::open({"dgx-h100*8", ""});
    ASSERT_TRUE(cluster.ok());
    EXPECT_EQ(probe_pairs(*cluster).error().code, ErrorCode::unsupported);
}

ProbeReport a_report() {
    ProbeReport report;
    report.machine = "dgx-h100";
    report.bytes = 64_MiB;
    PairProbe good{0, 1, "0000:1b:00.0", "0000:43:00.0", "copy engine", true, "", true, {}, 390, 396, 25};
    PairProbe wrong{2, 3, "0000:52:00.0", "0000:61:00.0", "kernel", true, "", false, 4096, 390, 396, 25};
    PairProbe slow{4, 5, "0000:9d:00.0", "0000:c3:00.0", "copy engine", true, "", true, {}, 9.9, 396, 22};
    PairProbe refused{6, 7, "0000:d1:00.0", "0000:df:00.0", "kernel", false, "no", true, {}, 0, 0, 22};
    report.pairs = {good, wrong, slow, refused};
    return report;
}

TEST(ProbeReports, ManyPairsAreAMatrixAndWhatStandsOut) {
    const std::string text = a_report().to_string();
    EXPECT_NE(text.find("  GB/s by copy engine\n"
                        "  from \\ to   gpu:0   gpu:1   gpu:4   gpu:5\n"
                        "  gpu:0           -   390.0       -       -\n"),
              std::string::npos)
        << text;
    EXPECT_EQ(text.find("gpu:0 -> gpu:1"), std::string::npos) << "nothing is odd about it";
    for (const char* odd : {"gpu:2 -> gpu:3", "gpu:4 -> gpu:5", "gpu:6 -> gpu:7"})
        EXPECT_NE(text.find(odd), std::string::npos) << odd;
    EXPECT_EQ(text.find("every byte arrived"), std::string::npos);
    ProbeReport two = a_report();
    two.pairs.resize(1);
    EXPECT_NE(two.to_string().find("gpu:0 -> gpu:1"), std::string::npos);
}

TEST(ProbeReports, RefusedPairsAreALineForEachReason) {
    ProbeReport report;
    report.machine = "pcie";
    for (int from = 0; from < 8; ++from)
        for (int to = 0; to < 8; ++to)
            for (const char* engine : {"copy engine", "kernel"})
                if (from != to)
                    report.pairs.push_back({from,
                                            to,
                                            "",
                                            "",
                                            engine,
                                            false,
                                            to == 7 ? "seven" : "no access",
                                            true,
                                            {},
                                            0,
                                            0,
                                            22});
    const std::string text = report.to_string();
    EXPECT_NE(text.find("  not direct by copy engine and kernel: gpu:0 -> gpu:1 and 97 more: no access\n"
                        "  not direct by copy engine and kernel: gpu:0 -> gpu:7 and 13 more: seven\n"),
              std::string::npos)
        << text;
    EXPECT_LT(std::count(text.begin(), text.end(), '\n'), 30) << text;
}

TEST(ProbeReports, RoundTrip) {
    const ProbeReport report = a_report();
    const auto read = ProbeReport::from_json(report.to_json(), "here");
    ASSERT_TRUE(read.ok()) << read.error().to_string();
    EXPECT_EQ(read->pairs, report.pairs);
    EXPECT_EQ(read->to_json(), report.to_json());
    EXPECT_NE(report.to_string().find("WRONG BYTES from offset 4096"), std::string::npos)
        << report.to_string();
    for (const char* bad : {"", "{}", "[]", R"({"format": "sidestep-probe", "version": 2})",
                            R"({"format": "sidestep-probe", "version": 1})"})
        EXPECT_EQ(ProbeReport::from_json(bad, "here").error().code, ErrorCode::invalid_argument) << bad;
    EXPECT_EQ(ProbeReport::load("/no/such/file").error().code, ErrorCode::not_found);
}

TEST(ProbeReports, TakePairsOutOfUse) {
    const auto dgx = Topology::model("dgx-h100");
    ASSERT_TRUE(dgx.ok());
    const auto probed = dgx->with_probe(a_report());
    ASSERT_TRUE(probed.ok()) << probed.error().to_string();
    EXPECT_TRUE(probed->peer_access(0, 1).allowed);
    EXPECT_FALSE(probed->peer_access(2, 3).allowed);
    EXPECT_NE(probed->peer_access(2, 3).reason.find("wrong bytes"), std::string::npos);
    EXPECT_TRUE(probed->peer_access(3, 2).allowed) << "the other way was not found wrong";
    EXPECT_FALSE(probed->peer_access(4, 5).allowed);
    EXPECT_NE(probed->peer_access(4, 5).reason.find("9.9 GB/s"), std::string::npos);
    EXPECT_TRUE(probed->peer_access(6, 7).allowed) << "nothing was measured";

    ProbeReport emulated = a_report();
    emulated.emulated = true;
    EXPECT_TRUE(dgx->with_probe(emulated)->peer_access(4, 5).allowed) << "emulated rates say nothing";
    EXPECT_FALSE(dgx->with_probe(emulated)->peer_access(2, 3).allowed);

    ProbeReport other = a_report();
    other.pairs[0].from_bus_id = "0000:aa:00.0";
    EXPECT_EQ(dgx->with_probe(other).error().code, ErrorCode::invalid_argument);
}

TEST(ProbeReports, AContextThatIsGivenOneAvoidsThePair) {
    const std::string path = testing::TempDir() + "sidestep-probe-" + std::to_string(::getpid()) + ".json";
    std::ofstream(path) << a_report().to_json();
    const auto context = Context::open({"dgx-h100", path});
    const auto missing = Context::open({"dgx-h100", path + ".not-there"});
    std::remove(path.c_str());
    ASSERT_TRUE(context.ok()) << context.error().to_string();
    EXPECT_TRUE(context->route(Place::gpu(0), Place::gpu(1), 1_GiB)->direct());
    const auto avoided = context->route(Place::gpu(2), Place::gpu(3), 1_GiB);
    ASSERT_TRUE(avoided.ok());
    EXPECT_FALSE(avoided->direct());
    EXPECT_NE(avoided->to_string().find("wrong bytes"), std::string::npos) << avoided->to_string();
    EXPECT_EQ(missing.error().code, ErrorCode::not_found);
}

TEST(Routes, ThroughTheHostWhereThatIsAskedFor) {
    const auto context = Context::open({"dgx-h100", ""});
    ASSERT_TRUE(context.ok());
    CopyOptions options;
    options.require = Require::host;
    const auto route = context->route(Place::gpu(0), Place::gpu(1), 1_GiB, options);
    ASSERT_TRUE(route.ok()) << route.error().to_string();
    ASSERT_EQ(route->lanes.front().hops.size(), 2U);
    EXPECT_TRUE(route->lanes.front().hops.front().to.is_host());
    bool told = false;
    for (const Refused& refused : route->refused)
        told = told || refused.reason == "a path through host memory is required";
    EXPECT_TRUE(told);
}

}  // namespace
}  // namespace sidestep
