// What the loader's script prints, and where its figures go.
#include "bench/peer_loaders.hpp"

#include <gtest/gtest.h>

namespace sidestep::bench {
namespace {

constexpr const char* printed =
    "version safetensors 0.6.2\n"
    "2.0 file -> gpu:0, warm\n"
    "1.0 file -> gpu:0, warm\n"
    "4.0 file -> 4 GPUs, the whole on each, warm\n";

TEST(Loader, OneFigureForEachTime) {
    const auto figures = parse_loader(printed, 8'000'000'000);
    ASSERT_TRUE(figures.ok()) << figures.error().to_string();
    ASSERT_EQ(figures->size(), 3u);
    EXPECT_EQ((*figures)[0].tool, "safetensors 0.6.2");
    EXPECT_EQ((*figures)[0].to, "gpu:0");
    EXPECT_EQ((*figures)[0].value, 4);
    EXPECT_EQ((*figures)[1].value, 8);
    EXPECT_EQ((*figures)[2].what, "file -> 4 GPUs, the whole on each, warm");
    EXPECT_EQ((*figures)[2].to, "");
    EXPECT_EQ((*figures)[2].value, 2);
}

TEST(Loader, OtherTextsAreErrors) {
    for (const char* text :
         {"", "version 1 2\n", "fast file -> gpu:0\n", "1.0 before the version\n", "version a 1\n0 file\n",
          "version a 1\n-1 x\n", "version a 1\n1.0\n", "version a 1\n1.0x y\n"})
        EXPECT_FALSE(parse_loader(text, 1).ok()) << text;
}

TEST(Loader, TheTimesOfOneFigureAreItsSamples) {
    Report report;
    CaseResult result;
    result.key = "checkpoint";
    for (const char* what : {"file -> gpu:0, cold", "file -> gpu:0, warm"}) {
        Figure figure;
        figure.what = what;
        figure.from = "file";
        figure.to = "gpu:0";
        figure.bytes = 8'000'000'000;
        figure.unit = "GB/s";
        figure.measured.values = {40};
        result.figures.push_back(figure);
    }
    report.cases = {result};
    attach(report, *parse_loader(printed, 8'000'000'000));
    EXPECT_TRUE(report.cases[0].figures[0].peers.empty());
    ASSERT_EQ(report.cases[0].figures[1].peers.size(), 1u);
    EXPECT_EQ(report.cases[0].figures[1].peers[0].samples.values, (std::vector<double>{4, 8}));
    ASSERT_EQ(report.cases.size(), 2u);
    EXPECT_EQ(report.cases[1].figures[0].what, "file -> 4 GPUs, the whole on each, warm (safetensors 0.6.2)");
}

}  // namespace
}  // namespace sidestep::bench
