// Other programs that measure between two machines: iperf3, ib_write_bw and ucx_perftest.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <optional>
#include <sstream>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench/child.hpp"
#include "bench/net.hpp"
#include "bench/peers.hpp"

namespace sidestep::bench {
namespace {

using Json = nlohmann::json;

constexpr std::chrono::seconds net_limit{30};
constexpr Bytes message = 1_MiB;

// How a program and its server on the node are called.
struct Tool {
    const char* name;
    int port;
    std::string server;  // what to type on the node
};

// Whether a program found nobody to talk to.
bool nobody(const std::string& said) {
    for (const char* words : {"refused", "nable to connect", "ouldn't connect", "imed out", "not end within"})
        if (said.find(words) != std::string::npos) return true;
    return false;
}

class Peers {
public:
    Peers(const std::string& node, const std::string& host, std::vector<std::string>& missing)
        : node_(node), host_(host), missing_(missing) {}

    // What the program printed; nothing, and why, where it did not get so far.
    std::optional<std::string> output_of(const Tool& tool, const std::vector<std::string>& arguments) {
        const std::string program = find_program(tool.name);
        if (program.empty()) return lacks(tool, "not on PATH here"), std::nullopt;
        auto ended = run_program(program, arguments, net_limit);
        if (!ended) return fails(tool, ended.error().message), std::nullopt;
        if (ended->code != 0)
            return fails(tool, last_line(ended->errors.empty() ? ended->output : ended->errors)),
                   std::nullopt;
        return std::move(ended->output);
    }
    void fails(const Tool& tool, const std::string& said) {
        if (!nobody(said)) return lacks(tool, said);
        missing_.push_back(fmt::format("{}: nothing answers at {}:{}, start `{}` on {}", tool.name, host_,
                                       tool.port, tool.server, node_));
    }
    void lacks(const Tool& tool, const std::string& why) {
        missing_.push_back(fmt::format("{}: {}", tool.name, why));
    }
    std::optional<NetPeer> take(const Tool& tool, const Result<NetPeer>& found) {
        if (found) return *found;
        fails(tool, found.error().message);
        return std::nullopt;
    }

private:
    const std::string& node_;
    const std::string& host_;
    std::vector<std::string>& missing_;
};

void run_iperf3(Peers& peers, const std::string& host, std::size_t sockets, const Options& options,
                std::vector<NetPeer>& found) {
    const Tool tool{"iperf3", 5201, "iperf3 -s"};
    for (const bool back : {false, true}) {
        std::vector<std::string> arguments = {"-c",
                                              host,
                                              "-J",
                                              "-t",
                                              options.smoke ? "1" : "3",
                                              "--connect-timeout",
                                              "3000",
                                              "-P",
                                              std::to_string(sockets)};
        if (back) arguments.emplace_back("-R");
        const auto output = peers.output_of(tool, arguments);
        auto figure = output ? peers.take(tool, parse_iperf3(*output)) : std::nullopt;
        if (!figure) return;
        figure->tool += fmt::format(", {}", sockets);
        figure->back = back;
        found.push_back(*figure);
    }
}

void run_ib_write_bw(Peers& peers, const std::string& host, const Options& options,
                     std::vector<NetPeer>& found) {
    const Tool tool{"ib_write_bw", 18515, "ib_write_bw -s 1048576 --report_gbits"};
    if (find_program(tool.name).empty()) return peers.lacks(tool, "not on PATH here");
    std::error_code error;
    if (!std::filesystem::exists("/sys/class/infiniband", error) ||
        std::filesystem::is_empty("/sys/class/infiniband", error))
        return peers.lacks(tool, "this machine has no RDMA card");
    const auto output = peers.output_of(
        tool, {"-s", std::to_string(message), "-n", options.smoke ? "10" : "5000", "--report_gbits", host});
    if (!output) return;
    const auto figures = parse_perftest(*output, host);
    if (!figures) return peers.fails(tool, figures.error().message);
    for (const PeerFigure& figure : *figures)
        found.push_back({"ib_write_bw", false, figure.bytes, figure.value});
}

void run_ucx_perftest(Peers& peers, const std::string& host, const Options& options,
                      std::vector<NetPeer>& found) {
    const Tool tool{"ucx_perftest", 13337, "ucx_perftest"};
    const auto output = peers.output_of(tool, {host, "-t", "tag_bw", "-s", std::to_string(message), "-n",
                                               options.smoke ? "20" : "2000", "-f"});
    auto figure = output ? peers.take(tool, parse_ucx_perftest(*output)) : std::nullopt;
    if (!figure) return;
    figure->bytes = message;
    found.push_back(*figure);
}

}  // namespace

Result<NetPeer> parse_iperf3(const std::string& json) {
    const Json root = Json::parse(json, nullptr, false);
    if (!root.is_object()) return unreadable("iperf3", "it is no JSON");
    if (const Json error = root.value("error", Json()); error.is_string())
        return unreadable("iperf3", error.get<std::string>());
    const auto at = [](const Json& json_of, const char* name) {
        return json_of.is_object() ? json_of.value(name, Json()) : Json();
    };
    const Json rate = at(at(at(root, "end"), "sum_received"), "bits_per_second");
    if (!rate.is_number() || rate.get<double>() <= 0) return unreadable("iperf3", "it has no bandwidth");
    const Json version = at(at(root, "start"), "version");
    NetPeer peer;
    peer.tool = version.is_string() ? version.get<std::string>() : "iperf3";
    peer.gb_per_s = rate.get<double>() / 8e9;
    return peer;
}

// Columns: iterations; 50 %, average and overall microseconds; average and overall MiB/s; average and overall messages
// a second. Newer versions put "Final:" before them.
Result<NetPeer> parse_ucx_perftest(const std::string& text) {
    constexpr std::size_t columns = 8, overall = 5;
    constexpr double mib_per_gb = 1048576.0 / 1e9;
    std::optional<double> found;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        if (const std::size_t label = line.rfind(':'); label != std::string::npos) line.erase(0, label + 1);
        std::vector<double> numbers;
        std::istringstream words(line);
        for (std::string word; words >> word;) {
            double value = 0;
            const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
            if (error != std::errc{} || end != word.data() + word.size()) break;
            numbers.push_back(value);
        }
        if (numbers.size() == columns && numbers[overall] > 0) found = numbers[overall] * mib_per_gb;
    }
    if (!found) return unreadable("ucx_perftest", "it has no line of figures");
    NetPeer peer;
    peer.tool = "ucx_perftest, tag_bw";
    peer.gb_per_s = *found;
    return peer;
}

std::vector<NetPeer> run_net_peers(const std::string& node, const std::string& host, std::size_t sockets,
                                   const Options& options, std::vector<std::string>& missing) {
    Peers peers(node, host, missing);
    std::vector<NetPeer> found;
    run_iperf3(peers, host, sockets, options, found);
    run_ib_write_bw(peers, host, options, found);
    run_ucx_perftest(peers, host, options, found);
    return found;
}

}  // namespace sidestep::bench
