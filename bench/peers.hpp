// Figures of other programs: nvbandwidth, nccl-tests, perftest and fio, where they are on PATH.
#pragma once

#include <string>
#include <vector>

#include "bench/case.hpp"
#include "bench/report.hpp"

namespace sidestep::bench {

// What a program printed about one movement.
struct PeerFigure {
    std::string tool;  // "nvbandwidth 0.8, write"
    std::string key;   // of the case it belongs beside; empty: of none
    std::string what;  // names the figure where it stands alone
    std::string from, to;
    Bytes bytes = 0;  // 0: not told
    std::string unit;
    bool more_is_better = true;
    double value = 0;
};

// What a program printed cannot be read.
Error unreadable(const std::string& tool, const std::string& what);

// Of `nvbandwidth -j`: the tests of copies and latency that have a case here; others are left out. Fails
// where it is no such output, or a test did not pass.
Result<std::vector<PeerFigure>> parse_nvbandwidth(const std::string& json);

// Of a program of nccl-tests: bus bandwidth out of place, each size.
Result<std::vector<PeerFigure>> parse_nccl_tests(const std::string& text, const std::string& program,
                                                 int gpus);

// Of ib_write_bw: the average bandwidth of each size.
Result<std::vector<PeerFigure>> parse_perftest(const std::string& text, const std::string& device);

// Of `fio --output-format=json` with one job: bytes a second of reading, or of writing.
Result<std::vector<PeerFigure>> parse_fio(const std::string& json, bool write);

// Puts each figure beside the largest figure of its case with the same ends, else into the case
// other_programs.
void attach(Report& report, const std::vector<PeerFigure>& figures);

// Runs what is there, each for at most 5 minutes, and attaches its figures. The report's notes name what is
// not there, and what failed with its last line.
void run_peers(Report& report, const Context& context, const Options& options);

}  // namespace sidestep::bench
