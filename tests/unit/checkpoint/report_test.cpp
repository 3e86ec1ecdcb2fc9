// The closing table of a load, from receipts made by hand.
#include "checkpoint/report.hpp"

#include <gtest/gtest.h>

namespace sidestep::checkpoint {
namespace {

ReportFacts facts(std::size_t gpus = 4) {
    ReportFacts facts;
    facts.places.clear();
    for (std::size_t i = 0; i < gpus; ++i) facts.places.push_back(Place::gpu(static_cast<int>(i)));
    facts.tensors = 291;
    facts.file_bytes = 16_GiB;
    facts.max_staging = 256_MiB;
    return facts;
}

// `limits` of reading, host to GPU, GPU to GPU.
Receipt receipt(double read, double up, double across) {
    Receipt receipt;
    receipt.bytes = 64_GiB;
    receipt.seconds = 2;
    receipt.storage.page_cache = 16_GiB;
    receipt.stages = {
        {"read", 16_GiB, 1.9, read}, {"host to GPU", 16_GiB, 1.5, up}, {"GPU to GPU", 48_GiB, 1, across}};
    auto route = std::make_shared<Route>();
    route->lanes.resize(1);
    route->lanes[0].hops.resize(1);
    route->expected_gb_per_s = 50;
    receipt.route = std::move(route);
    return receipt;
}

void expect_advice(const ReportFacts& facts, const Receipt& receipt, const std::string& words) {
    EXPECT_NE(advice(facts, receipt).find(words), std::string::npos) << advice(facts, receipt);
}

TEST(Report, TheStageThatTheOthersWaitForMostIsTheLimit) {
    EXPECT_EQ(limiting_stage(receipt(1, 0.5, 0))->name, "read");
    EXPECT_EQ(limiting_stage(receipt(0.1, 0.5, 0.2))->name, "host to GPU");
    EXPECT_EQ(limiting_stage(receipt(0, 0, 0)), nullptr);
    expect_advice(facts(), receipt(0, 0, 0), "no stage");
}

TEST(Report, AdviceOnReading) {
    Receipt given = receipt(1, 0.5, 0);
    expect_advice(facts(), given, "more of them for this process");
    given.storage = {0, 16_GiB, 1_GiB};
    expect_advice(facts(), given, "the page cache did not hold");
    ReportFacts bypassed = facts();
    bypassed.page_cache = PageCache::bypass;
    expect_advice(bypassed, given, "let the page cache be used");
    given.storage = {0, 1_GiB, 16_GiB, 12_GiB};
    expect_advice(facts(), given, "read through the page cache");
    given.storage = {16_GiB, 0, 0};
    expect_advice(facts(), given, "straight to the GPUs");
}

TEST(Report, AdviceOnHostMemory) {
    Receipt given = receipt(0, 1, 0);
    given.stages[1].name = "host to host";
    expect_advice(facts(), given, "within host memory");
}

TEST(Report, OfFilesOfANodeTheWayThereIsTheLimit) {
    Receipt given = receipt(1, 0.5, 0);
    auto route = std::make_shared<Route>(*given.route);
    route->from = Place::file("/models/x").on("node7");
    given.route = std::move(route);
    expect_advice(facts(), given, "sidestep doctor --peer node7");
}

TEST(Report, AdviceOnLinks) {
    expect_advice(facts(1), receipt(0, 1, 0), "several GPUs");
    expect_advice(facts(), receipt(0, 1, 0), "layouts tensor and axis");
    ReportFacts tensor = facts();
    tensor.layout = Layout::by_tensor;
    expect_advice(tensor, receipt(0, 1, 0), "carry what they can");
    ReportFacts little = facts();
    little.max_staging = 8_MiB;
    expect_advice(little, receipt(0, 1, 0), "raise max_staging");
    expect_advice(facts(), receipt(0, 0, 1), "between the GPUs");
    Receipt verified = receipt(1, 0, 0);
    verified.verified = true;
    verified.verify_seconds = 3;
    verified.stages.push_back({"verify", 16_GiB, 3, 3});
    EXPECT_EQ(limiting_stage(verified)->name, "read");
    expect_advice(facts(), verified, "verification took longer");
}

TEST(Report, ColumnsStayApart) {
    Receipt given = receipt(1, 0.5, 0);
    given.bytes = 4;
    given.stages = {{"read", 4, 0.26, 0.26}, {"a stage of a name of thirty-one", 1'234'567'890'123, 1e9, 0}};
    ReportFacts one = facts(1);
    one.tensors = 1;
    one.file_bytes = 4;
    const std::string text = report_of(one, given);
    for (const char* words :
         {"1 tensor to gpu:0, ", " 4 B 0.0000000154 GB/s ", "one    1.12 TiB 0.00000123 GB/s "})
        EXPECT_NE(text.find(words), std::string::npos) << words << "\n" << text;
}

TEST(Report, Table) {
    Receipt given = receipt(1, 0.5, 0);
    given.notes = {"tmpfs refuses O_DIRECT"};
    const std::string text = report_of(facts(), given);
    for (const char* line :
         {"291 tensors to gpu:0, gpu:1, gpu:2, gpu:3, layout replicate: 16 GiB of files in 2.00 s",
          "; 64 GiB arrived\n", "page cache                  16 GiB     100 %\n",
          "read                        16 GiB       9.04 GB/s      67 %\n", "limit:  read\n",
          "note:   tmpfs refuses O_DIRECT\n"})
        EXPECT_NE(text.find(line), std::string::npos) << line << "\n" << text;
    EXPECT_EQ(text.find("emulated"), std::string::npos);
}

TEST(Report, BytesOfTheDeviceBesideThoseOfTheCache) {
    Receipt given = receipt(1, 0.5, 0);
    given.storage = {1_GiB, 2_GiB, 13_GiB, 5_GiB};
    const std::string text = report_of(facts(), given);
    for (const char* line :
         {"a device                     8 GiB      50 %\n", "the page cache               8 GiB      50 %\n"})
        EXPECT_NE(text.find(line), std::string::npos) << line << "\n" << text;
    auto far = std::make_shared<Route>(*given.route);
    far->from = Place::file("/m").on("node7");
    given.route = far;
    EXPECT_EQ(report_of(facts(), given).find("a device"), std::string::npos) << "a node does not tell";
}

}  // namespace
}  // namespace sidestep::checkpoint
