#include "bench/peers.hpp"
#include "bench/leftovers.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "bench/child.hpp"
#include "bench/peer_loaders.hpp"

namespace sidestep::bench {
namespace {

constexpr std::chrono::minutes peer_limit{5};

bool measured(const Report& report, const std::string& key) {
    return std::any_of(report.cases.begin(), report.cases.end(), [&](const CaseResult& result) {
        return result.key == key && !result.figures.empty();
    });
}

// The program's output, or nothing and a note.
std::optional<std::string> output_of(Report& report, const std::string& name,
                                     const std::vector<std::string>& arguments) {
    const std::string program = find_program(name);
    if (program.empty()) {
        report.notes.push_back(fmt::format("{} is not on PATH", name));
        return std::nullopt;
    }
    auto ended = run_program(program, arguments, peer_limit);
    if (!ended) {
        report.notes.push_back(fmt::format("{}: {}", name, ended.error().to_string()));
        return std::nullopt;
    }
    if (ended->code != 0) {
        const std::string said = last_line(ended->errors.empty() ? ended->output : ended->errors);
        report.notes.push_back(fmt::format("{} ended with {}: {}", name, ended->code, said));
        return std::nullopt;
    }
    return std::move(ended->output);
}

void take(Report& report, const std::string& name, const Result<std::vector<PeerFigure>>& figures) {
    if (figures) return attach(report, *figures);
    report.notes.push_back(fmt::format("{}: {}", name, figures.error().to_string()));
}

void run_nvbandwidth(Report& report, const Options& options) {
    const std::pair<const char*, std::vector<std::string>> wanted[] = {
        {"host_link", {"host_to_device_memcpy_ce", "device_to_host_memcpy_ce"}},
        {"peer_engine", {"device_to_device_memcpy_read_ce", "device_to_device_memcpy_write_ce"}},
        {"peer_kernel", {"device_to_device_memcpy_read_sm", "device_to_device_memcpy_write_sm"}},
        {"peer_both_ways", {"device_to_device_bidirectional_memcpy_write_ce"}},
        {"latency_load", {"host_device_latency_sm", "device_to_device_latency_sm"}}};
    std::vector<std::string> arguments = {"-j", "-t"};
    for (const auto& [key, tests] : wanted)
        if (measured(report, key)) arguments.insert(arguments.end(), tests.begin(), tests.end());
    if (arguments.size() == 2) return;
    if (options.smoke) arguments.insert(arguments.begin(), {"-i", "1", "-b", "32"});
    if (const auto output = output_of(report, "nvbandwidth", arguments))
        take(report, "nvbandwidth", parse_nvbandwidth(*output));
}

void run_nccl_tests(Report& report, const Context& context, const Options& options) {
    const int gpus = context.topology().gpu_count();
    if (!fewer_than_two_gpus(context).empty() || !measured(report, "peer_engine")) return;
    const std::string size = options.smoke ? "1M" : "1G";
    for (const std::string name : {"sendrecv_perf", "all_reduce_perf"})
        if (const auto output = output_of(report, name, {"-b", size, "-e", size, "-g", std::to_string(gpus)}))
            take(report, name, parse_nccl_tests(*output, name, gpus));
}

// A server and a client over one card of this machine.
void run_perftest(Report& report, const Options& options) {
    const std::string program = find_program("ib_write_bw");
    if (program.empty()) return report.notes.push_back("ib_write_bw is not on PATH");
    std::error_code error;
    std::vector<std::string> cards;
    for (const auto& entry : std::filesystem::directory_iterator("/sys/class/infiniband", error))
        cards.push_back(entry.path().filename().string());
    if (cards.empty()) return report.notes.push_back("ib_write_bw: this machine has no RDMA card");
    const std::string card = *std::min_element(cards.begin(), cards.end());
    std::vector<std::string> arguments = {
        "-d", card, "-s", "1048576", "-n", options.smoke ? "10" : "5000", "--report_gbits"};
    auto server = Child::start(program, arguments);
    if (!server) return report.notes.push_back(fmt::format("ib_write_bw: {}", server.error().to_string()));
    arguments.push_back("127.0.0.1");
    // The client ends at once while nobody listens yet.
    Result<Ended> client = Error{ErrorCode::internal, "not started", "ib_write_bw", {}};
    for (int attempt = 0; attempt < 20; ++attempt) {
        client = run_program(program, arguments, peer_limit);
        if (!client || client->code == 0) break;
        usleep(100'000);
    }
    if (!client) return report.notes.push_back(fmt::format("ib_write_bw: {}", client.error().to_string()));
    if (client->code != 0)
        return report.notes.push_back(
            fmt::format("ib_write_bw ended with {}: {}", client->code, last_line(client->errors)));
    take(report, "ib_write_bw", parse_perftest(client->output, card));
}

void run_fio(Report& report, const Options& options) {
    if (!measured(report, "file")) return;
    const auto folder = scratch_folder(options);
    if (!folder) return report.notes.push_back(fmt::format("fio: {}", folder.error().to_string()));
    const ScratchFile file((*folder / fmt::format("sidestep-bench-fio-{}", getpid())).string());
    for (const bool write : {false, true}) {
        const std::vector<std::string> arguments = {"--name=sidestep",
                                                    "--filename=" + file.path(),
                                                    write ? "--rw=write" : "--rw=read",
                                                    "--bs=1M",
                                                    "--direct=1",
                                                    "--ioengine=io_uring",
                                                    "--iodepth=32",
                                                    options.smoke ? "--size=1M" : "--size=1G",
                                                    "--output-format=json"};
        if (const auto output = output_of(report, "fio", arguments))
            take(report, "fio", parse_fio(*output, write));
        else
            break;  // the note is there
    }
}

void run_loaders(Report& report, const Options& options) {
    Bytes bytes = 0;
    for (const CaseResult& result : report.cases)
        for (const Figure& figure : result.figures)
            if (result.key == "checkpoint") bytes = std::max(bytes, figure.bytes);
    if (bytes > 0) attach(report, run_loaders(options, bytes, report.notes));
}

// The figure of the case with the same ends and name, the largest where there are several sizes.
Figure* beside(Report& report, const PeerFigure& peer) {
    Figure* found = nullptr;
    for (CaseResult& result : report.cases) {
        if (result.key != peer.key || peer.from.empty()) continue;
        const bool by_name = result.key == "file" || result.key == "checkpoint";
        for (Figure& figure : result.figures) {
            const bool ends = figure.from == peer.from && figure.to == peer.to && figure.unit == peer.unit;
            // A case of files has a figure around the page cache and one through it, cold and warm ones.
            const bool same = !by_name || figure.what == peer.what;
            if (ends && same && (!found || figure.bytes > found->bytes)) found = &figure;
        }
    }
    return found;
}

// A figure that only the program has; its samples are the program's.
void add_alone(Report& report, const PeerFigure& peer) {
    const char* key = "other_programs";
    auto own = std::find_if(report.cases.begin(), report.cases.end(),
                            [&](const CaseResult& result) { return result.key == key; });
    if (own == report.cases.end()) {
        CaseResult result;
        result.key = key;
        result.description = "What only other programs measured";
        own = report.cases.insert(own, std::move(result));
    }
    Figure figure;
    figure.what = fmt::format("{} ({})", peer.what, peer.tool);
    figure.from = peer.from;
    figure.to = peer.to;
    figure.bytes = peer.bytes;
    figure.unit = peer.unit;
    figure.more_is_better = peer.more_is_better;
    figure.measured.values = {peer.value};
    own->figures.push_back(std::move(figure));
}

}  // namespace

void attach(Report& report, const std::vector<PeerFigure>& figures) {
    for (const PeerFigure& peer : figures) {
        Figure* const figure = beside(report, peer);
        if (figure == nullptr) {
            add_alone(report, peer);
            continue;
        }
        const auto known = std::find_if(figure->peers.begin(), figure->peers.end(),
                                        [&](const Peer& other) { return other.name == peer.tool; });
        if (known == figure->peers.end())
            figure->peers.push_back({peer.tool, Samples{{peer.value}}});
        else
            known->samples.values.push_back(peer.value);
    }
}

void run_peers(Report& report, const Context& context, const Options& options) {
    if (context.topology().emulated()) {
        report.notes.push_back("other programs cannot be run on an emulated machine");
        return;
    }
    run_nvbandwidth(report, options);
    run_nccl_tests(report, context, options);
    run_perftest(report, options);
    run_fio(report, options);
    run_loaders(report, options);
}

}  // namespace sidestep::bench
