#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sidestep/receipt.hpp>

namespace sidestep {
namespace {

Route sample() {
    Route route;
    route.from = Place::gpu(0);
    route.to = Place::gpu(5);
    route.bytes = 1024;
    route.emulated = true;
    Hop hop;
    hop.from = route.from;
    hop.to = route.to;
    hop.backend = "host";
    hop.engine = "host-emulated copy engine";
    hop.link = "NVLink (18 links through NVSwitch)";
    hop.gb_per_s = 396;
    Lane lane;
    lane.hops = {hop};
    lane.gb_per_s = 396;
    route.lanes = {lane};
    route.refused = {{"gpu:0 -> host -> gpu:5", "2 copies through host memory", "", 54.5},
                     {"gpu:0 -> gpu:5 by kernel", "off", "turn it on", 0}};
    route.expected_gb_per_s = 396;
    return route;
}

TEST(RenderRoute, TextNamesHopsRefusalsAndRemedies) {
    EXPECT_EQ(sample().to_string(),
              "gpu:0 -> gpu:5   1 hop, expected 396 GB/s (modelled)\n"
              "  1  host-emulated copy engine over NVLink (18 links through NVSwitch), 396 GB/s\n"
              "refused\n"
              "  gpu:0 -> host -> gpu:5    2 copies through host memory, 54.5 GB/s\n"
              "  gpu:0 -> gpu:5 by kernel  off\n"
              "                            remedy: turn it on\n");
}

TEST(RenderRoute, NamesOfFilesSteerNoTerminal) {
    Route route = sample();
    route.lanes[0].hops = {route.lanes[0].hops[0], route.lanes[0].hops[0]};
    route.from = route.lanes[0].hops[0].from = Place::file("e\x1b[31m\n");
    Receipt receipt;
    receipt.route = std::make_shared<const Route>(route);
    for (const std::string& text : {route.to_string(), receipt.summary(), receipt.explain()}) {
        EXPECT_EQ(text.find('\x1b'), std::string::npos) << text;
        EXPECT_NE(text.find("file:e\xef\xbf\xbd[31m\xef\xbf\xbd ->"), std::string::npos) << text;
    }
    EXPECT_NE(route.to_json().find("\\u001b"), std::string::npos) << "programs get the name as it is";
}

TEST(RenderRoute, JsonHasLanesAsListsOfHopsAndRefused) {
    const auto json = nlohmann::json::parse(sample().to_json());
    EXPECT_EQ(json["version"], 1);
    EXPECT_EQ(json["lanes"][0]["hops"][0]["backend"], "host");
    EXPECT_EQ(json["refused"].size(), 2u);
    EXPECT_EQ(json["refused"][1]["remedy"], "turn it on");
    EXPECT_TRUE(json["direct"].get<bool>());
}

TEST(RenderRoute, BytesThatAreNoUtf8DoNotThrow) {
    Route route = sample();
    route.from = Place::file("\xff\xfe");
    EXPECT_TRUE(nlohmann::json::accept(route.to_json()));
}

TEST(RenderReceipt, ShareCountsLatencyAndIsSilentWhenEmulated) {
    Receipt receipt;
    receipt.bytes = 1'000'000'000;
    receipt.seconds = 2;
    auto route = std::make_shared<Route>(sample());
    receipt.route = route;
    EXPECT_EQ(receipt.share_of_expected(), 0);
    route->emulated = false;
    route->expected_gb_per_s = 1;
    EXPECT_NEAR(receipt.share_of_expected(), 0.5, 1e-9);
    route->lanes[0].latency_us = 1e6;
    EXPECT_NEAR(receipt.share_of_expected(), 1.0, 1e-9);
    EXPECT_NE(receipt.summary().find("0.500 GB/s, gpu:0"), std::string::npos) << receipt.summary();
    EXPECT_NE(receipt.summary().find("100 % of the expected 0.500 GB/s"), std::string::npos)
        << receipt.summary();
    receipt.bytes = 0;
    EXPECT_EQ(receipt.share_of_expected(), 0) << "nothing has no rate";
}

TEST(RenderReceipt, ExplainShowsWhatEachLaneCarriedAndTheNotes) {
    Receipt receipt;
    receipt.bytes = 2048;
    receipt.seconds = 1;
    receipt.route = std::make_shared<Route>(sample());
    receipt.lane_bytes = {2048};
    receipt.notes = {"tmpfs refuses O_DIRECT"};
    const std::string text = receipt.explain();
    EXPECT_NE(text.find("lane 1 carried 2 KiB"), std::string::npos) << text;
    EXPECT_NE(text.find("note: tmpfs refuses O_DIRECT"), std::string::npos) << text;
    const auto json = nlohmann::json::parse(receipt.to_json());
    EXPECT_EQ(json["lane_bytes"][0], 2048);
    EXPECT_EQ(json["notes"][0], "tmpfs refuses O_DIRECT");
}

}  // namespace
}  // namespace sidestep
