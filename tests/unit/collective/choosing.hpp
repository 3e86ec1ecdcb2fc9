// Operations and groups, as tests of what is chosen have them.
#pragma once

#include <algorithm>
#include <string>

#include <gtest/gtest.h>

#include "collective/choose.hpp"

namespace sidestep::collective {

inline constexpr Collective every[] = {
    Collective::all_reduce, Collective::broadcast,      Collective::reduce,
    Collective::all_gather, Collective::reduce_scatter, Collective::all_to_all,
    Collective::gather,     Collective::scatter,        Collective::barrier};

inline Operation operation_of(Collective collective, std::uint64_t bytes) {
    Operation operation;
    operation.collective = collective;
    operation.count = bytes;
    operation.element = protocol::Element::u8;
    operation.combine = combines(collective) ? protocol::Combine::sum : protocol::Combine::none;
    return operation;
}

inline GroupFacts group_of(int ranks) {
    GroupFacts facts;
    facts.ranks = ranks;
    return facts;
}

inline Choice choice_of(const Operation& operation, const GroupFacts& facts) {
    const auto choice = choose(operation, facts, GroupPolicy::automatic);
    EXPECT_TRUE(choice.ok());
    return choice.ok() ? *choice : Choice{};
}

inline std::string algorithm_of(Collective collective, std::uint64_t bytes, int ranks) {
    return choice_of(operation_of(collective, bytes), group_of(ranks)).algorithm;
}

inline const Refused* refused_of(const Choice& choice, const std::string& name) {
    const auto found = std::find_if(choice.refused.begin(), choice.refused.end(),
                                    [&](const Refused& one) { return one.path == name; });
    return found == choice.refused.end() ? nullptr : &*found;
}

inline Operation reduction_of(Collective collective, std::uint64_t bytes, protocol::Element element) {
    Operation operation = operation_of(collective, bytes);
    operation.element = element;
    operation.count = bytes / size_of(element);
    return operation;
}

}  // namespace sidestep::collective
