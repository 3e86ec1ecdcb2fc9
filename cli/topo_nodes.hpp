// sidestep topo NODE...: machines that serve.
#pragma once

#include <string>
#include <vector>

#include "verb.hpp"

namespace sidestep::cli {

// The topologies of nodes, in the order of their names; the first that does not answer is the error.
Result<std::vector<Topology>> topologies_of(const std::vector<std::string>& nodes, const Globals& globals);

// One after the other, as text or as a JSON array; of a single node as of this machine. `write` makes the text of one.
template <typename Write>
Result<std::string> written_together(const std::vector<Topology>& all, bool json, const Write& write) {
    std::string text;
    for (const Topology& one : all) {
        auto part = write(one);
        if (!part) return part.error();
        if (all.size() > 1) text += text.empty() ? (json ? "[\n" : "") : (json ? ",\n" : "\n");
        while (!part->empty() && part->back() == '\n') part->pop_back();
        text += *part + (json && all.size() > 1 ? "" : "\n");
    }
    if (json && all.size() > 1) text += "\n]\n";
    return text;
}

}  // namespace sidestep::cli
