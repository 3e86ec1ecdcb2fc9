#include "bench/report.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace sidestep::bench {
namespace {

using Json = nlohmann::ordered_json;

Figure rate() {
    Figure figure;
    figure.what = "host -> gpu:0";
    figure.from = "host";
    figure.to = "gpu:0";
    figure.bytes = Bytes{1} << 40;
    figure.unit = "GB/s";
    figure.measured.values = {55.25, 55.5, 54};
    figure.limit = 60;
    figure.limit_source = "link: PCIe gen5 x16";
    figure.peers = {{"nvbandwidth 0.8", {{55.5}}}, {"bare", {{1, 2}}}};
    figure.verified = true;
    figure.threshold = 50.5;
    figure.verdict = Verdict::pass;
    figure.path = "host -> gpu:0 (copy engine)";
    return figure;
}

Report whole() {
    Report report;
    report.version = "0.1.0";
    report.date = "2026-11-21T14:03:12Z";
    report.command = "sidestep bench --save \"x\"";
    report.machine = "live";
    report.emulated = true;
    report.processor = "a processor, 64 cores";
    report.kernel = "Linux 6.18.0";
    report.driver = "580.159.04, CUDA 13.0";
    report.topology = R"({"name":"live","devices":[]})";
    Figure time = rate();
    time.more_is_better = false;
    time.unit = "us";
    time.verdict = Verdict::fail;
    CaseResult done{"host_link", "Each way", "", "", {rate(), time}, {"a note"}};
    CaseResult skipped{"latency", "One load", "no GPU", "", {}, {}};
    CaseResult failed{"file", "A file", "", "no space", {}, {}};
    report.cases = {done, skipped, failed};
    report.notes = {"nvbandwidth is not on PATH", "\xc3\xa9"};
    return report;
}

TEST(Samples, MedianLeastAndMost) {
    EXPECT_EQ((Samples{{5, 1, 3}}).median(), 3);
    EXPECT_EQ((Samples{{4, 1, 3, 9}}).median(), 3.5);
    EXPECT_EQ((Samples{{4, 1, 3, 9}}).min(), 1);
    EXPECT_EQ((Samples{{4, 1, 3, 9}}).max(), 9);
}

TEST(Samples, NoneGiveZero) {
    const Samples none;
    EXPECT_TRUE(none.empty());
    EXPECT_EQ(none.median(), 0);
    EXPECT_EQ(none.min(), 0);
    EXPECT_EQ(none.max(), 0);
}

TEST(Figure, ShareOfLimitOfRatesAndTimes) {
    Figure figure = rate();
    EXPECT_DOUBLE_EQ(figure.share_of_limit(), 55.25 / 60);
    figure.more_is_better = false;
    EXPECT_DOUBLE_EQ(figure.share_of_limit(), 60 / 55.25);
    figure.limit = 0;
    EXPECT_EQ(figure.share_of_limit(), 0);
    figure.limit = 60;
    figure.measured.values.clear();
    EXPECT_EQ(figure.share_of_limit(), 0);
}

TEST(ReportJson, IsReadBackTheSame) {
    const Report before = whole();
    const auto after = Report::from_json(before.to_json(), "test");
    ASSERT_TRUE(after.ok()) << after.error().to_string();
    // Every member is in the text: comparing the second text compares them all.
    EXPECT_EQ(after->to_json(), before.to_json());
    EXPECT_EQ(after->topology, before.topology);
    EXPECT_EQ(after->notes, before.notes);
    EXPECT_TRUE(after->emulated);
    ASSERT_EQ(after->cases.size(), 3u);
    const Figure& figure = after->cases[0].figures[0];
    EXPECT_EQ(figure.bytes, Bytes{1} << 40);
    EXPECT_EQ(figure.measured.values, (std::vector<double>{55.25, 55.5, 54}));
    EXPECT_EQ(figure.verdict, Verdict::pass);
    EXPECT_EQ(after->cases[0].figures[1].verdict, Verdict::fail);
    EXPECT_FALSE(after->cases[0].figures[1].more_is_better);
    ASSERT_EQ(figure.peers.size(), 2u);
    EXPECT_EQ(figure.peers[1].samples.values, (std::vector<double>{1, 2}));
    EXPECT_EQ(after->cases[1].skipped, "no GPU");
    EXPECT_EQ(after->cases[2].failed, "no space");
}

TEST(ReportJson, ATopologyThatIsNoJsonIsLeftOut) {
    Report report = whole();
    report.topology = "{broken";
    const auto after = Report::from_json(report.to_json(), "test");
    ASSERT_TRUE(after.ok()) << after.error().to_string();
    EXPECT_EQ(after->topology, "");
}

TEST(ReportJson, BytesThatAreNoUtf8DoNotBreakTheFile) {
    Report report = whole();
    report.command = "sidestep bench --save \xff";
    EXPECT_TRUE(Report::from_json(report.to_json(), "test").ok());
}

// Every member of every object: missing, and of a wrong type. What is computed from others is not read.
TEST(ReportJson, NamesWhatIsMissingOrOfAnotherType) {
    const Json good = Json::parse(whole().to_json());
    const std::pair<const char*, const char*> objects[] = {
        {"", ""},
        {"/cases/1", "cases[1]."},
        {"/cases/0/figures/1", "cases[0].figures[1]."},
        {"/cases/0/figures/0/peers/1", "cases[0].figures[0].peers[1]."}};
    const std::vector<std::string> computed = {"median", "share_of_limit"};
    for (const auto& [pointer, place] : objects)
        for (const auto& [name, value] : good.at(Json::json_pointer(pointer)).items()) {
            if (std::find(computed.begin(), computed.end(), name) != computed.end()) continue;
            Json missing = good, other = good;
            missing.at(Json::json_pointer(pointer)).erase(name);
            other.at(Json::json_pointer(pointer))[name] = value.is_boolean() ? Json("text") : Json(true);
            for (const Json& bad : {missing, other}) {
                const auto read = Report::from_json(bad.dump(), "file.json");
                ASSERT_FALSE(read.ok()) << place << name;
                EXPECT_EQ(read.error().code, ErrorCode::invalid_argument);
                EXPECT_EQ(read.error().where, "file.json");
                EXPECT_NE(read.error().message.find(place + name), std::string::npos) << read.error().message;
            }
        }
}

TEST(ReportJson, RefusesOtherFormatsAndValues) {
    const std::string good = whole().to_json();
    const auto with = [&good](const std::string& from, const std::string& to) {
        std::string text = good;
        text.replace(text.find(from), from.size(), to);
        const auto read = Report::from_json(text, "file.json");
        return read.ok() ? std::string("read") : read.error().message;
    };
    EXPECT_NE(with("\"sidestep-bench\"", "\"other\"").find("format is 'other'"), std::string::npos);
    EXPECT_NE(with("\"format_version\": 1", "\"format_version\": 2").find("format_version is 2"),
              std::string::npos);
    EXPECT_NE(with("\"bytes\": 1099511627776", "\"bytes\": -1").find("bytes is not a whole number"),
              std::string::npos);
    EXPECT_NE(with("54.0", "1e999").find("no JSON"), std::string::npos);
    EXPECT_NE(with("54.0", "null").find("samples[2] is not a number"), std::string::npos);
    EXPECT_NE(with("\"pass\"", "\"maybe\"").find("verdict is neither"), std::string::npos);
    EXPECT_NE(with("\"name\": \"live\"", "\"name\": \"live").find("no JSON"), std::string::npos);
}

TEST(ReportJson, RefusesWhatIsNoObjectOrNestsTooDeep) {
    for (const char* text : {"", "[]", "1", "null", "{}", "{\"format\": \"sidestep-bench\"}"})
        EXPECT_FALSE(Report::from_json(text, "file.json").ok()) << text;
    const std::string deep(100'000, '[');
    const auto read = Report::from_json(deep, "file.json");
    ASSERT_FALSE(read.ok());
    EXPECT_NE(read.error().message.find("deeper"), std::string::npos);
    // Brackets in a text do not nest.
    Report report = whole();
    report.command = std::string(1000, '[') + "\"\\";
    EXPECT_TRUE(Report::from_json(report.to_json(), "test").ok());
}

TEST(ReportJson, LoadSaysWhichFile) {
    const auto read = Report::load("/no/such/report.json");
    ASSERT_FALSE(read.ok());
    EXPECT_EQ(read.error().code, ErrorCode::not_found);
    EXPECT_EQ(read.error().where, "/no/such/report.json");
    EXPECT_FALSE(Report::load("/").ok());
    const auto endless = Report::load("/dev/zero");
    ASSERT_FALSE(endless.ok());
    EXPECT_NE(endless.error().message.find("larger"), std::string::npos);
}

}  // namespace
}  // namespace sidestep::bench
