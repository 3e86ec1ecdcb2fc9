// Copies to a node that serves and back, between host memory and GPUs, with plain sockets measured in turns beside
// them; or from one node to another and back, with copies to this machine and from there beside them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/case.hpp"

namespace sidestep::bench {

struct NetPlan {
    std::string node;     // as in places
    int gpu = 0;          // of this machine; of nodes it is gpu:0
    std::string other{};  // the other node; empty: this machine
};

struct NetWatch {
    // Called with each line of the table as soon as it is there; an error ends the run.
    std::function<Result<void>(const std::string& line)> say;
    // Called with all cases after each figure, before its line.
    std::function<void(const std::vector<CaseResult>& so_far)> keep;
};

// The case net_latency (microseconds of a copy of up to 64 KiB), net_bandwidth (GB/s of larger ones) and net_batch (many
// pieces as one batch: GB/s, or millions of tiny ones a second). Ends that one
// of the machines does not have or allow have a line and a note that say why. Fails where the node is not reached; what
// is lost on the way is told in CaseResult::failed. Other programs that answer on the node are run as well.
Result<std::vector<CaseResult>> measure_net(const Context& context, const NetPlan& plan,
                                            const Options& options, const NetWatch& watch);

// What other programs measured between the same machines.
struct NetPeer {
    std::string tool;  // "iperf3 3.12, 4 connections"
    bool back = false;
    Bytes bytes = 0;  // of one message; 0: it has none
    double gb_per_s = 0;
};
// Of `iperf3 -J`: what the receiver got.
Result<NetPeer> parse_iperf3(const std::string& json);
// Of `ucx_perftest -f` of a bandwidth: the overall one of the last line of numbers.
Result<NetPeer> parse_ucx_perftest(const std::string& text);

// Runs iperf3, ib_write_bw and ucx_perftest where they are on PATH and a server of theirs answers on the node.
// `missing` gets, for each that was not measured, why, and what to start on the node.
std::vector<NetPeer> run_net_peers(const std::string& node, const std::string& host, std::size_t sockets,
                                   const Options& options, std::vector<std::string>& missing);

}  // namespace sidestep::bench
