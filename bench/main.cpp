// sidestep-bench [--smoke] [--case KEY]... [--samples N] [--size BYTES] [--json FILE] [--list]
#include <cstdio>
#include <fstream>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench/case.hpp"

namespace sidestep::bench {
namespace {

// Measured as a share of the peer: of rates, more is better; of times, the difference is what counts.
std::string against_peer(const Figure& figure) {
    if (figure.peer.values.empty()) return "-";
    if (figure.unit == "us") return fmt::format("{:+.2f} us", figure.measured.median() - figure.peer.median());
    return fmt::format("{:.1f} %", figure.measured.median() / figure.peer.median() * 100);
}

void print(const Figure& figure) {
    fmt::print("  {:<44} {:>8.2f} {:<5} [{:.2f} .. {:.2f}]", figure.what, figure.measured.median(), figure.unit,
               figure.measured.least(), figure.measured.most());
    if (!figure.peer.values.empty())
        fmt::print("  {}: {:.2f} [{:.2f} .. {:.2f}]  {}", figure.peer_name, figure.peer.median(),
                   figure.peer.least(), figure.peer.most(), against_peer(figure));
    fmt::print("\n");
    std::fflush(stdout);
}

nlohmann::ordered_json to_json(const Figure& figure) {
    nlohmann::ordered_json json = {{"what", figure.what}, {"unit", figure.unit},
                                   {"median", figure.measured.median()}, {"samples", figure.measured.values}};
    if (!figure.peer.values.empty())
        json["peer"] = {{"name", figure.peer_name}, {"median", figure.peer.median()}, {"samples", figure.peer.values}};
    return json;
}

// Runs one case; false where it failed. A case that cannot run here says why.
bool run_case(const Case& test, const Context& context, const Options& options, nlohmann::ordered_json& out) {
    fmt::print("{}: {}\n", test.key, test.description);
    const std::string missing = test.missing(context);
    if (!missing.empty()) {
        fmt::print("  skipped: {}\n", missing);
        out.push_back({{"case", test.key}, {"skipped", missing}});
        return true;
    }
    const auto figures = test.run(context, options);
    if (!figures) {
        fmt::print("  failed: {}\n", figures.error().to_string());
        out.push_back({{"case", test.key}, {"failed", figures.error().to_string()}});
        return false;
    }
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const Figure& figure : *figures) {
        print(figure);
        list.push_back(to_json(figure));
    }
    out.push_back({{"case", test.key}, {"figures", std::move(list)}});
    return true;
}

int run_all(const std::vector<Case>& cases, const std::vector<std::string>& wanted, const Options& options,
            const std::string& json_path) {
    auto context = Context::open({"live"});
    if (!context) {
        fmt::print(stderr, "sidestep-bench: {}\n", context.error().to_string());
        return 1;
    }
    nlohmann::ordered_json out = nlohmann::ordered_json::array();
    bool good = true;
    for (const Case& test : cases)
        if (wanted.empty() || std::find(wanted.begin(), wanted.end(), test.key) != wanted.end())
            good &= run_case(test, *context, options, out);
    if (!json_path.empty()) std::ofstream(json_path) << out.dump(2) << '\n';
    return good ? 0 : 1;
}

int main_of(int argc, char** argv) {
    Options options;
    std::vector<std::string> wanted;
    std::string json_path;
    std::string size;
    bool list = false;
    CLI::App app{"Measures Sidestep beside what the hardware and plain code reach, in the same run."};
    app.add_flag("--smoke", options.smoke, "Tiny sizes: only shows that every case works");
    app.add_option("--case", wanted, "Run only the cases with these keys");
    app.add_option("--samples", options.samples, "Samples of each figure")->check(CLI::Range(1, 1000));
    app.add_option("--size", size, "Bytes of a large copy, such as 1GiB");
    app.add_option("--json", json_path, "Write every sample to this file");
    app.add_flag("--list", list, "List the cases");
    CLI11_PARSE(app, argc, argv);
    if (options.smoke) options.samples = 1;
    if (!size.empty()) {
        const auto bytes = parse_bytes(size);
        if (!bytes) {
            fmt::print(stderr, "sidestep-bench: {}\n", bytes.error().to_string());
            return 2;
        }
        options.bytes = *bytes;
    }
    std::vector<Case> cases = host_cases();
    for (Case& test : gpu_cases()) cases.push_back(std::move(test));
    for (Case& test : topology_cases()) cases.push_back(std::move(test));
    for (const std::string& key : wanted)
        if (std::none_of(cases.begin(), cases.end(), [&](const Case& test) { return test.key == key; })) {
            fmt::print(stderr, "sidestep-bench: there is no case '{}'; see --list\n", key);
            return 2;
        }
    if (list) {
        for (const Case& test : cases) fmt::print("{:<16} {}\n", test.key, test.description);
        return 0;
    }
    return run_all(cases, wanted, options, json_path);
}

}  // namespace
}  // namespace sidestep::bench

int main(int argc, char** argv) { return sidestep::bench::main_of(argc, argv); }
