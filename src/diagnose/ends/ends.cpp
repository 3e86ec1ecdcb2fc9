#include "diagnose/ends/ends.hpp"

#include <charconv>

#include <fmt/format.h>

namespace sidestep::diagnose {
namespace {

std::optional<std::string> fact(const EndFacts& facts, const std::string& name) {
    const auto found = facts.find(name);
    return found == facts.end() ? std::nullopt : std::optional(found->second);
}

std::optional<long long> number(const std::optional<std::string>& text) {
    long long value = 0;
    if (!text) return std::nullopt;
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
    if (error != std::errc{} || end != text->data() + text->size()) return std::nullopt;
    return value;
}

}  // namespace

Both both(const NodeLook& look, const std::string& name) {
    return {fact(look.here, name), fact(look.there, name)};
}

BothNumbers numbers(const NodeLook& look, const std::string& name) {
    const Both texts = both(look, name);
    return {number(texts.here), number(texts.there)};
}

std::string words(const std::optional<std::string>& text) {
    return text.value_or("not told");
}

void see_both(Outcome& outcome, const NodeLook& look, const std::string& name) {
    const Both told = both(look, name);
    outcome.saw(name + " here", words(told.here));
    outcome.saw(fmt::format("{} on {}", name, look.node), words(told.there));
}

std::string silent_ends(const Both& told, const NodeLook& look) {
    if (told.here) return look.node;
    return told.there ? "this machine" : "neither end";
}

Outcome not_told(const NodeLook& look, const std::string& name, const std::string& what) {
    const Both told = both(look, name);
    const std::string silent = silent_ends(told, look);
    Outcome outcome = unknown(silent == "neither end" ? fmt::format("neither end tells {}", what)
                                                      : fmt::format("{} does not tell {}", silent, what));
    see_both(outcome, look, name);
    return outcome;
}

Finding finding_of(const EndCheck& check, Outcome outcome) {
    Finding finding;
    finding.id = check.id;
    finding.group = CheckGroup::network;
    finding.title = check.title;
    finding.page = "docs/network.md";
    finding.verdict = outcome.verdict;
    finding.applies = outcome.applies;
    finding.summary = std::move(outcome.summary);
    finding.seen = std::move(outcome.seen);
    if (outcome.verdict == Verdict::pass) return finding;
    finding.cost = check.cost;
    finding.remedy = outcome.remedy.empty() ? check.remedy : std::move(outcome.remedy);
    finding.command = std::move(outcome.command);
    finding.needs_root = !finding.command.empty();
    return finding;
}

std::vector<Finding> compare_ends(const NodeLook& look) {
    std::vector<Finding> findings;
    for (const auto& checks : {version_end_checks(), way_end_checks(), rdma_end_checks(), limit_end_checks()})
        for (const EndCheck& check : checks) findings.push_back(finding_of(check, check.look(look)));
    return findings;
}

}  // namespace sidestep::diagnose
