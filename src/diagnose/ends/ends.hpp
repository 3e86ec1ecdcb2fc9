// One difference between two ends of a connection that may slow copies down, and the function that looks for it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <sidestep/node.hpp>

#include "diagnose/check.hpp"

namespace sidestep::diagnose {

struct EndCheck {
    const char* id;      // stable; letters, digits and '-'
    const char* title;   // the cause in one line
    const char* cost;    // what it takes away
    const char* remedy;  // what to do; an Outcome's own comes first
    Outcome (*look)(const NodeLook& look);
};

std::vector<EndCheck> version_end_checks();
std::vector<EndCheck> way_end_checks();
std::vector<EndCheck> rdma_end_checks();
std::vector<EndCheck> limit_end_checks();

// What the check found, with its words where it did not pass.
Finding finding_of(const EndCheck& check, Outcome outcome);
// All checks of both ends, in the order above. Pure.
std::vector<Finding> compare_ends(const NodeLook& look);

// Real bytes to host memory of the node and to each of its GPUs, and back.
Result<std::vector<Finding>> try_copies(const Context& context, const std::string& node, Bytes bytes);

// One fact of both ends.
struct Both {
    std::optional<std::string> here;
    std::optional<std::string> there;

    bool told() const { return here && there; }
    bool same() const { return told() && *here == *there; }
};
Both both(const NodeLook& look, const std::string& name);
// As numbers; what is none is not told.
struct BothNumbers {
    std::optional<long long> here;
    std::optional<long long> there;

    bool told() const { return here && there; }
};
BothNumbers numbers(const NodeLook& look, const std::string& name);
// "1500" or "not told".
std::string words(const std::optional<std::string>& fact);
// Adds what both ends say of it.
void see_both(Outcome& outcome, const NodeLook& look, const std::string& name);
// "here", "node7", "neither here nor on node7": which ends do not tell it.
std::string silent_ends(const Both& fact, const NodeLook& look);
// unknown: one end does not say.
Outcome not_told(const NodeLook& look, const std::string& name, const std::string& what);

}  // namespace sidestep::diagnose
