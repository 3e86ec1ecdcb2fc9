#include "bench/run.hpp"

#include <algorithm>
#include <ctime>
#include <thread>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench/raw_cuda.hpp"
#include "bench/text_file.hpp"

namespace sidestep::bench {
namespace {

constexpr std::size_t max_proc = 4 << 20;  // of a file below /proc

std::string now() {
    const std::time_t seconds = std::time(nullptr);
    std::tm parts{};
    gmtime_r(&seconds, &parts);
    char text[32];
    std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
    return text;
}

std::string processor() {
    std::string model = "unknown processor";
    const auto text = read_text("/proc/cpuinfo", max_proc);
    if (const auto line = text ? text->find("model name") : std::string::npos; line != std::string::npos) {
        const auto begin = text->find(": ", line), end = text->find('\n', line);
        if (begin < end && end != std::string::npos) model = text->substr(begin + 2, end - begin - 2);
    }
    return fmt::format("{}, {} CPUs", model, std::thread::hardware_concurrency());
}

std::string kernel() {
    auto release = read_text("/proc/sys/kernel/osrelease", max_proc);
    if (!release) return {};
    release->erase(release->find_last_not_of(" \n") + 1);
    return fmt::format("Linux {}", *release);
}

std::string property(const Topology& topology, const char* name) {
    const Properties& properties = topology.parts().properties;
    const auto found = properties.find(name);
    return found == properties.end() ? std::string() : found->second;
}

std::string gpu_driver(const Topology& topology) {
    if (topology.emulated() || topology.gpu_count() == 0) return {};
    std::string driver = property(topology, "nvidia_driver");
    if (driver.empty()) driver = property(topology, "nvml_driver");
    const std::string cuda = raw::cuda_version();
    if (cuda.empty()) return driver;
    return fmt::format("{}{}CUDA {}", driver, driver.empty() ? "" : ", ", cuda);
}

// Without line breaks, so that what is read back from a file is the same text.
std::string compact(const std::string& json) {
    const auto parsed = nlohmann::ordered_json::parse(json, nullptr, false);
    return parsed.is_object() ? parsed.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace)
                              : std::string();
}

}  // namespace

Report begin_report(const Context& context, std::string command) {
    const Topology& topology = context.topology();
    Report report;
    report.version = version();
    report.date = now();
    report.command = std::move(command);
    report.machine = topology.name();
    report.emulated = topology.emulated();
    report.processor = processor();
    report.kernel = kernel();
    report.driver = gpu_driver(topology);
    report.topology = compact(topology.to_json());
    report.notes = topology.notes();
    if (report.emulated)
        report.notes.push_back(
            "the GPUs are emulated in this machine's memory: rates say nothing about the modelled machine, "
            "and no "
            "limits of links are shown");
    if (const std::string missing = no_raw_cuda(context);
        !report.emulated && topology.gpu_count() > 0 && !missing.empty())
        report.notes.push_back(
            fmt::format("the driver's own copies cannot be measured beside the library's: {}", missing));
    return report;
}

CaseResult run_case(const Case& test, const Context& context, const Options& options) {
    CaseResult result;
    result.key = test.key;
    result.description = test.description;
    if (test.unnamed) result.skipped = test.unnamed(options);
    if (result.skipped.empty()) result.skipped = test.missing(context);
    if (!result.skipped.empty()) return result;
    auto figures = test.run(context, options);
    if (!figures) {
        result.failed = figures.error().to_string();
        return result;
    }
    result.figures = std::move(*figures);
    if (result.figures.empty())
        result.skipped = "nothing of it is asked for, or the GPUs cannot reach each other";
    return result;
}

Result<std::vector<Case>> choose_cases(const std::vector<Case>& all,
                                       const std::vector<std::string>& patterns) {
    const auto fits_key = [](const std::string& pattern) {
        return [&pattern](const Case& test) { return fits(pattern, test.key); };
    };
    for (const std::string& pattern : patterns)
        if (std::none_of(all.begin(), all.end(), fits_key(pattern)))
            return Error{ErrorCode::not_found,
                         fmt::format("there is no case '{}'", pattern),
                         {},
                         "sidestep bench --list names them"};
    std::vector<Case> chosen;
    for (const Case& test : all)
        if (patterns.empty() ||
            std::any_of(patterns.begin(), patterns.end(),
                        [&](const std::string& pattern) { return fits(pattern, test.key); }))
            chosen.push_back(test);
    return chosen;
}

// Goes back to the last * when the text does not go on as the pattern does: work of at most the product of
// both lengths.
bool fits(const std::string& pattern, const std::string& text) {
    std::size_t p = 0, t = 0, star = std::string::npos, resume = 0;
    while (t < text.size()) {
        if (p < pattern.size() && pattern[p] == '*') {
            star = p++;
            resume = t;
        } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
            ++p;
            ++t;
        } else if (star != std::string::npos) {
            p = star + 1;
            t = ++resume;
        } else {
            return false;
        }
    }
    while (p < pattern.size() && pattern[p] == '*') ++p;
    return p == pattern.size();
}

}  // namespace sidestep::bench
