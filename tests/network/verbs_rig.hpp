// Two ends of a link over an RDMA card: SIDESTEP_TEST_VERBS names it.
#pragma once

#include <gtest/gtest.h>
#include "backends/verbs/verbs_engine.hpp"
#include "tests/network/link_rig.hpp"
#include "tests/network/target.hpp"

namespace sidestep::wire {

class Verbs : public test::TwoEnds<backends::verbs::Engine> {
protected:
    void SetUp() override {
        if (test::verbs_card() == nullptr) GTEST_SKIP() << "SIDESTEP_TEST_VERBS names no RDMA card";
        engine = backends::verbs::Engine::create({.cards = {test::verbs_card()}}).value();
    }
};

}  // namespace sidestep::wire
