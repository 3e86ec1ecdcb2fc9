// The doctor over two ends: what it finds, and the copies that it tries.
#include <sidestep/peer_doctor.hpp>

#include <algorithm>

#include "tests/network/nodes.hpp"
#include "tests/network/proxy.hpp"

namespace sidestep {
namespace {

using test::Nodes;
using test::Proxy;

class PeerDoctor : public Nodes {
protected:
    static const Finding* find(const Diagnosis& diagnosis, const std::string& id) {
        const auto found = std::find_if(diagnosis.findings.begin(), diagnosis.findings.end(),
                                        [&](const Finding& finding) { return finding.id == id; });
        return found == diagnosis.findings.end() ? nullptr : &*found;
    }
};

TEST_F(PeerDoctor, FindsNothingWrongWithOneMachine) {
    const auto diagnosis = run_peer_doctor(*here, "n", {.bytes = 100'000});
    ASSERT_TRUE(diagnosis) << diagnosis.error().to_string();
    EXPECT_EQ(diagnosis->machine, "n");
    EXPECT_EQ(diagnosis->count(Verdict::fail), 0) << diagnosis->to_string();
    for (const char* id : {"end-software", "end-protocol", "end-kernel", "end-addresses", "end-mtu",
                           "end-copy-host", "end-copy-gpu-0", "end-copy-gpu-7"}) {
        const Finding* const finding = find(*diagnosis, id);
        ASSERT_NE(finding, nullptr) << id;
        EXPECT_EQ(finding->verdict, Verdict::pass) << id << ": " << finding->summary;
        EXPECT_TRUE(finding->applies) << id;
        EXPECT_EQ(finding->group, CheckGroup::network);
    }
    EXPECT_EQ(find(*diagnosis, "end-copy-gpu-8"), nullptr);
    EXPECT_NE(diagnosis->to_json().find("\"network\""), std::string::npos);
    EXPECT_NE(diagnosis->to_string().find("end-copy-gpu-7"), std::string::npos);
}

TEST_F(PeerDoctor, PlacesThatAreNotAllowedAreNotTried) {
    serve("gpu:1");
    here = std::make_unique<Context>(*client());
    const auto diagnosis = run_peer_doctor(*here, "n", {.bytes = 4096});
    ASSERT_TRUE(diagnosis) << diagnosis.error().to_string();
    EXPECT_TRUE(find(*diagnosis, "end-copy-gpu-1")->applies);
    for (const char* id : {"end-copy-host", "end-copy-gpu-0", "end-copy-gpu-2"}) {
        const Finding* const finding = find(*diagnosis, id);
        ASSERT_NE(finding, nullptr) << id;
        EXPECT_FALSE(finding->applies) << id;
        EXPECT_NE(finding->summary.find("is not allowed"), std::string::npos) << finding->summary;
    }
}

TEST_F(PeerDoctor, MemoryThatIsNotThereFails) {
    serve("host=1MiB");
    here = std::make_unique<Context>(*client());
    const auto diagnosis = run_peer_doctor(*here, "n", {.bytes = 2 << 20});
    ASSERT_TRUE(diagnosis) << diagnosis.error().to_string();
    const Finding* const finding = find(*diagnosis, "end-copy-host");
    EXPECT_EQ(finding->verdict, Verdict::fail);
    EXPECT_NE(finding->summary.find("1 MiB"), std::string::npos) << finding->summary;
    EXPECT_FALSE(finding->remedy.empty());
}

TEST_F(PeerDoctor, NothingIsLeftOnTheNode) {
    serve("host=64KiB");
    here = std::make_unique<Context>(*client());
    for (int i = 0; i < 3; ++i) {
        const auto diagnosis = run_peer_doctor(*here, "n", {.bytes = 64 << 10});
        ASSERT_TRUE(diagnosis) << diagnosis.error().to_string();
        EXPECT_EQ(find(*diagnosis, "end-copy-host")->verdict, Verdict::pass)
            << find(*diagnosis, "end-copy-host")->summary;
    }
}

// The third connection is the first with data: the control connection and the try of the address come before.
TEST_F(PeerDoctor, AByteThatChangesOnTheWayIsFound) {
    Proxy proxy(port());
    ASSERT_TRUE(here->connect("far", proxy.address()));
    proxy.damage(3, 1000);
    const auto diagnosis = run_peer_doctor(*here, "far", {.bytes = 4096});
    ASSERT_TRUE(diagnosis) << diagnosis.error().to_string();
    const Finding* const finding = find(*diagnosis, "end-copy-host");
    EXPECT_EQ(finding->verdict, Verdict::fail) << finding->summary;
    EXPECT_NE(finding->summary.find("other bytes than it was given"), std::string::npos) << finding->summary;
    EXPECT_EQ(diagnosis->count(Verdict::fail), 1) << diagnosis->to_string();
}

TEST_F(PeerDoctor, WhatIsNotReachedIsOneError) {
    serving.reset();
    const auto diagnosis = run_peer_doctor(*here, "n");
    EXPECT_EQ(diagnosis.error().code, ErrorCode::not_found);
}

}  // namespace
}  // namespace sidestep
