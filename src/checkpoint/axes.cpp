#include "checkpoint/axes.hpp"

#include <fmt/format.h>

#include "base/try.hpp"
#include "checkpoint/patterns.hpp"

namespace sidestep::checkpoint {
namespace {

Result<std::vector<Pattern>> patterns_of(const std::vector<ShardRule>& rules) {
    std::vector<Pattern> patterns;
    for (std::size_t i = 0; i < rules.size(); ++i) {
        auto pattern = Pattern::parse(rules[i].pattern);
        if (!pattern) {
            Error error = pattern.error();
            error.message = fmt::format("shard rule {}: {}", i + 1, error.message);
            return error;
        }
        patterns.push_back(std::move(*pattern));
    }
    return patterns;
}

}  // namespace

Result<RuledAxes> axes_of(const std::vector<TensorInfo>& tensors, const std::vector<ShardRule>& rules) {
    SIDESTEP_TRY(auto patterns, patterns_of(rules));
    RuledAxes ruled;
    ruled.axes.resize(tensors.size());
    std::vector<bool> used(rules.size(), false);
    for (std::size_t tensor = 0; tensor < tensors.size(); ++tensor) {
        for (std::size_t rule = 0; rule < rules.size(); ++rule) {
            if (!patterns[rule].fits(tensors[tensor].name)) continue;
            ruled.axes[tensor] = rules[rule].axis;
            used[rule] = true;
            break;
        }
    }
    for (std::size_t rule = 0; rule < rules.size(); ++rule)
        if (!used[rule])
            ruled.notes.push_back(fmt::format(
                "shard rule {} ({}, axis {}) is used by no tensor: none fits, or earlier rules took them",
                rule + 1, rules[rule].pattern, rules[rule].axis));
    return ruled;
}

}  // namespace sidestep::checkpoint
