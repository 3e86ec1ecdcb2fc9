#include "diagnose/checks/process_facts.hpp"

#include <algorithm>
#include <cstdlib>
#include <sstream>

namespace sidestep::diagnose {

namespace {

// "unlimited" is nullopt in `into`. False where the text is neither that nor a number.
bool parse_limit(const std::string& text, std::optional<std::uint64_t>& into) {
    if (text == "unlimited") {
        into.reset();
        return true;
    }
    if (text.empty() || text.find_first_not_of("0123456789") != std::string::npos) return false;
    into = std::strtoull(text.c_str(), nullptr, 10);
    return true;
}

// The rest of the first line that starts with `start`.
std::optional<std::string> rest_of_line(const std::optional<std::string>& text, const std::string& start) {
    std::istringstream lines(text.value_or(""));
    for (std::string line; std::getline(lines, line);) {
        if (line.starts_with(start)) return line.substr(start.size());
    }
    return std::nullopt;
}

}  // namespace

std::optional<ProcessLimit> process_limit(const driver::MachineFiles& files, const std::string& name) {
    const auto rest = rest_of_line(files.text("/proc/self/limits"), name);
    if (!rest) return std::nullopt;
    std::istringstream columns(*rest);
    std::string soft;
    std::string hard;
    columns >> soft >> hard;
    ProcessLimit limit;
    if (!parse_limit(soft, limit.soft) || !parse_limit(hard, limit.hard)) return std::nullopt;
    limit.words = "soft " + soft + ", hard " + hard;
    return limit;
}

std::optional<std::string> process_status(const driver::MachineFiles& files, const std::string& name) {
    auto rest = rest_of_line(files.text("/proc/self/status"), name + ":");
    if (!rest) return std::nullopt;
    const auto first = rest->find_first_not_of(" \t");
    return first == std::string::npos ? "" : rest->substr(first);
}

std::optional<bool> has_capability(const driver::MachineFiles& files, int number) {
    const auto mask = process_status(files, "CapEff");
    if (!mask || mask->empty()) return std::nullopt;
    return (std::strtoull(mask->c_str(), nullptr, 16) >> number & 1U) != 0;
}

Ranges ranges_of(const std::string& list) {
    Ranges ranges;
    std::istringstream parts(list);
    for (std::string part; std::getline(parts, part, ',');) {
        char* end = nullptr;
        const long first = std::strtol(part.c_str(), &end, 10);
        if (end == part.c_str() || first < 0 || first > 1 << 20) continue;
        long last = first;
        if (*end == '-') last = std::strtol(end + 1, nullptr, 10);
        if (last >= first && last <= 1 << 20)
            ranges.emplace_back(static_cast<int>(first), static_cast<int>(last));
    }
    return ranges;
}

bool overlap(const Ranges& a, const Ranges& b) {
    return std::any_of(a.begin(), a.end(), [&](const auto& x) {
        return std::any_of(b.begin(), b.end(),
                           [&](const auto& y) { return x.first <= y.second && y.first <= x.second; });
    });
}

}  // namespace sidestep::diagnose
