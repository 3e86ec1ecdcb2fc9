// What a node counts, and the text that Prometheus reads.
#include "wire/counters.hpp"

#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include <gtest/gtest.h>
#include "wire/metrics.hpp"

namespace sidestep::wire {
namespace {

using std::chrono::microseconds;

// Strictly by the text format 0.0.4: each family has its HELP and TYPE first, once, and its samples together.
std::map<std::string, double> samples_of(const std::string& text) {
    static const std::regex sample(
        R"(([a-z_]+)(\{[a-z_]+="(?:[^"\\\n]|\\["\\n])*"(?:,[a-z_]+="(?:[^"\\\n]|\\["\\n])*")*\})? ([0-9.e+-]+))");
    std::map<std::string, double> samples;
    std::set<std::string> families;
    std::string family, type;
    EXPECT_TRUE(text.ends_with('\n'));
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        if (line.starts_with("# HELP ")) {
            family = line.substr(7, line.find(' ', 7) - 7);
            EXPECT_TRUE(families.insert(family).second) << family << " twice";
            type.clear();
            continue;
        }
        if (line.starts_with("# TYPE ")) {
            EXPECT_EQ(line.substr(7, family.size() + 1), family + " ");
            type = line.substr(8 + family.size());
            continue;
        }
        std::smatch found;
        if (!std::regex_match(line, found, sample)) {
            ADD_FAILURE() << "no sample: " << line;
            continue;
        }
        const std::string name = found[1];
        EXPECT_FALSE(type.empty()) << line;
        EXPECT_TRUE(name == family || (type == "histogram" && name.starts_with(family + "_"))) << line;
        EXPECT_EQ(type == "counter", name.ends_with("_total")) << line;
        EXPECT_TRUE(samples.emplace(name + found[2].str(), std::stod(found[3])).second) << line << " twice";
    }
    return samples;
}

TEST(CountersTest, NothingHasHappened) {
    const auto samples = samples_of(metrics_text(Counters(), {"node7"}));
    EXPECT_EQ(samples.at("sidestep_clients"), 0);
    EXPECT_EQ(samples.at(R"(sidestep_requests_total{word="attach",outcome="ok"})"), 0);
    EXPECT_EQ(samples.at("sidestep_request_seconds_count"), 0);
    EXPECT_EQ(samples.at(R"(sidestep_refused_total{reason="key"})"), 0);
}

TEST(CountersTest, WhatHasHappenedIsTold) {
    Counters counters;
    counters.answered(Word::describe, std::string(), microseconds(20));
    counters.answered(Word::describe, Error{ErrorCode::not_found, "", "", ""}, microseconds(200));
    counters.answered(Word::detach, std::string(), std::chrono::seconds(11));
    counters.refused(Refusal::key);
    counters.traffic(PlaceKind::gpu).received += 5;
    counters.traffic(PlaceKind::p2pmem).sent += 7;
    const auto samples = samples_of(metrics_text(counters, {"node7", 2, 1, 12, 13}));
    const std::map<std::string, double> expected = {
        {"sidestep_clients", 2},
        {"sidestep_probes", 1},
        {R"(sidestep_link_bytes_total{direction="received"})", 12},
        {R"(sidestep_link_bytes_total{direction="sent"})", 13},
        {R"(sidestep_place_bytes_total{place="gpu",direction="received"})", 5},
        {R"(sidestep_place_bytes_total{place="gpu",direction="sent"})", 0},
        {R"(sidestep_place_bytes_total{place="p2pmem",direction="sent"})", 7},
        {R"(sidestep_requests_total{word="describe",outcome="ok"})", 1},
        {R"(sidestep_requests_total{word="describe",outcome="not_found"})", 1},
        {R"(sidestep_requests_total{word="detach",outcome="ok"})", 1},
        {R"(sidestep_refused_total{reason="key"})", 1},
        {R"(sidestep_request_seconds_bucket{le="1e-05"})", 0},
        {R"(sidestep_request_seconds_bucket{le="3e-05"})", 1},
        {R"(sidestep_request_seconds_bucket{le="0.0003"})", 2},
        {R"(sidestep_request_seconds_bucket{le="10"})", 2},
        {R"(sidestep_request_seconds_bucket{le="+Inf"})", 3},
        {"sidestep_request_seconds_count", 3}};
    for (const auto& [name, value] : expected) {
        ASSERT_TRUE(samples.contains(name)) << name;
        EXPECT_EQ(samples.at(name), value) << name;
    }
    EXPECT_NEAR(samples.at("sidestep_request_seconds_sum"), 11.00022, 1e-9);
}

TEST(CountersTest, ANameCannotBreakALine) {
    const std::string text = metrics_text(Counters(), {"a\"b\\c\nd\xff"});
    samples_of(text);
    EXPECT_NE(text.find(R"(node="a\"b\\c?d?")"), std::string::npos) << text;
}

}  // namespace
}  // namespace sidestep::wire
