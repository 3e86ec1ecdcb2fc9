// What a run of the benchmark found: plain data that is printed, saved, compared and drawn.
#pragma once

#include <string>
#include <vector>

#include <sidestep/result.hpp>
#include <sidestep/units.hpp>

namespace sidestep::bench {

// Samples of one quantity, in the order they were taken.
struct Samples {
    std::vector<double> values;

    bool empty() const { return values.empty(); }
    double median() const;  // of the three below: 0 where there is no sample
    double min() const;
    double max() const;
};

// What another program or a plain loop reached at the same thing, in the same run.
struct Peer {
    std::string name;  // "nvbandwidth 0.8", "bare cuMemcpyAsync"
    Samples samples;
};

// How a figure stands to its threshold.
enum class Verdict { none, pass, fail };

// One measured quantity beside what the hardware can do.
struct Figure {
    std::string what;  // "gpu:0 -> gpu:1, copy engine": names the figure within its case, without the size
    std::string from;  // places, for matrices; may be empty
    std::string to;
    Bytes bytes = 0;   // moved by one sample, for curves over size; 0 where size plays no part
    std::string unit;  // "GB/s", "us", "ns", "M/s"
    bool more_is_better = true;
    Samples measured;
    double limit = 0;          // in the same unit; 0: none is known
    std::string limit_source;  // how the limit was had: "link: PCIe gen5 x16", "raw loop, same run"
    std::vector<Peer> peers;
    bool verified = false;  // the bytes were compared after the last sample
    double threshold = 0;   // that the median has to reach (or must not exceed where less is better); 0: none
    Verdict verdict = Verdict::none;
    std::string path;  // what carried the bytes: Receipt's path in words; may be empty

    // Median as a share of the limit, 0 to about 1 (of the limit over the median where less is better); 0
    // without a limit.
    double share_of_limit() const;
};

struct CaseResult {
    std::string key;
    std::string description;
    std::string skipped;  // why it could not run; empty where it did
    std::string failed;   // the error; empty where it did not fail
    std::vector<Figure> figures;
    std::vector<std::string> notes;  // what people should know about the figures, in plain sentences
};

struct Report {
    std::string version;  // of the library
    std::string date;     // "2026-11-21T14:03:12Z"
    std::string command;  // as typed
    std::string machine;  // the topology's name
    // The GPUs are emulated in host memory: rates say nothing about the modelled machine.
    bool emulated = false;
    std::string processor;  // "Intel Xeon ..., 64 CPUs"
    std::string kernel;     // "Linux 6.18.0"
    std::string driver;     // "580.159.04, CUDA 13.0"; empty without GPUs
    std::string topology;   // the machine as JSON text (docs/topology-format.md)
    std::vector<CaseResult> cases;
    std::vector<std::string> notes;  // tools that are not there, and what else went otherwise than asked
    int idle_thresholds = 0;  // lines that judged no figure; their notes are all that a file keeps of them

    // The object documented in docs/bench-format.md; what is written is read back the same.
    std::string to_json() const;
    // `where` names the file in errors.
    static Result<Report> from_json(const std::string& text, const std::string& where);
    static Result<Report> load(const std::string& path);
};

// One self-contained page: no script, style or picture from elsewhere (bench/html/).
std::string to_html(const Report& report);

}  // namespace sidestep::bench
