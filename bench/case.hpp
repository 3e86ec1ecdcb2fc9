// A benchmark case: what it measures, where it can run, and figures beside what the hardware can do.
//
// To add cases: a file bench/cases_X.cpp with `std::vector<Case> X_cases()`, declared below and called by
// all_cases(). A case measures, and says the limit beside each figure; printing, thresholds and files are not
// its business. It uses the public interface, and for plain loops beside it bench/raw_cuda.hpp.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <sidestep/sidestep.hpp>

#include "bench/raw_file.hpp"
#include "bench/report.hpp"

namespace sidestep::bench {

// What the person who runs it asked for.
struct Options {
    bool smoke = false;             // tiny sizes, one sample: only shows that the case works
    int samples = 7;                // of each figure, after one warm-up
    std::vector<Bytes> sizes;       // empty: the case's own
    std::vector<int> gpus;          // empty: all
    std::optional<Place> from, to;  // only figures with these ends
    bool verify = true;             // compare the bytes after the last sample
    std::string folder;             // for files; empty: the system's folder for temporary files
    std::string object;             // s3://BUCKET/KEY, which is read; empty: none

    // The sizes a case measures: those asked for, else `own`; in smoke runs one of at most 1 MiB.
    std::vector<Bytes> sizes_or(std::vector<Bytes> own) const;
    // Whether figures between two places are asked for.
    bool wants(const Place& source, const Place& target) const;
    bool wants_gpu(int gpu) const;
};

struct Case {
    std::string key;          // "host_link": for --case, thresholds and compare; never changes its meaning
    std::string description;  // one line
    // Empty where the case can run, else why it cannot.
    std::function<std::string(const Context&)> missing;
    // An Error ends the case; figures that it has no way to measure are left out.
    std::function<Result<std::vector<Figure>>(const Context&, const Options&)> run;
    // Empty where the options name what the case needs, else what to name; null: it needs nothing.
    std::function<std::string(const Options&)> unnamed = {};
};

// In the order they run.
std::vector<Case> all_cases();
std::vector<Case> host_cases();
std::vector<Case> gpu_cases();
std::vector<Case> both_ways_cases();
std::vector<Case> latency_cases();
std::vector<Case> lane_cases();
std::vector<Case> small_cases();
std::vector<Case> ipc_cases();
std::vector<Case> file_cases();
std::vector<Case> checkpoint_cases();
std::vector<Case> object_cases();
std::vector<Case> collective_cases();
std::vector<Case> topology_cases();

// For Case::missing.
std::string nothing_missing(const Context& context);
// No usable GPU, live or emulated.
std::string no_gpu(const Context& context);
std::string fewer_than_two_gpus(const Context& context);
// No CUDA driver to run plain loops on: also on every emulated machine.
std::string no_raw_cuda(const Context& context);

// The GPUs, and the ordered pairs of GPUs, that options ask for.
std::vector<int> gpus_of(const Context& context, const Options& options);
std::vector<std::pair<Place, Place>> pairs_of(const Context& context, const Options& options);

// A figure from one place to another, without samples: "gpu:0 -> gpu:1", with `words` appended after a comma
// where they are not empty. The limit is the rate the topology expects of the path where the machine is real
// and the path is known (Topology::pair), else none.
Figure link_figure(const Context& context, const Place& from, const Place& to, Bytes bytes,
                   const std::string& words = {});

// Where a copy of that size may take several lanes on a real machine: the limit is what their links carry
// together, each at its rate alone. Else leaves the figure as it is.
void limit_by_lanes(Figure& figure, const Context& context, const Place& from, const Place& to);

// A plain loop that does the same without the library, measured in turns with it so that both see the same
// noise. Answers the seconds of one movement of figure.bytes bytes.
struct Yardstick {
    std::string name;  // "memcpy, 8 threads"
    std::function<Result<double>()> seconds;
};

// Fills figure.measured with GB/s of figure.bytes: `once`, which answers seconds, runs options.samples times
// after one warm-up, each followed by the turns of the yardsticks. They become peers, and the first of them the limit where
// the figure has none.
Result<Figure> measure_rate(Figure figure, const Options& options,
                            const std::function<Result<double>()>& once,
                            const std::vector<Yardstick>& yardsticks = {});

// Threads that make `loop`, as many as do it best: "pread, 4 threads (the best count)". None where O_DIRECT is refused.
Result<std::vector<Yardstick>> thread_yardsticks(raw::FileLoop loop, char* memory, const char* how);

// Adds samples that a plain loop made: a peer, and the limit (their median) where the figure has none.
void add_yardstick(Figure& figure, std::string name, Samples samples);

// Wall seconds of a call.
template <typename Call>
double seconds_of(Call&& call) {
    const auto start = std::chrono::steady_clock::now();
    call();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The size of a large copy: 1 GiB, on emulated machines 64 MiB.
Bytes large(const Context& context);

// Wall seconds of one copy, from submission to the end of wait(). Where `path` is given it gets the way the
// bytes took in words, and the receipt's notes.
Result<double> timed_copy(const Context& context, const Buffer& from, const Buffer& to,
                          const CopyOptions& options = {}, std::string* path = nullptr);
// What carried a copy, in words: "host -> gpu:0 (copy engine)", lanes parted by "; ", then the notes.
std::string words_of(const Receipt& receipt);

// Fills host or GPU memory with bytes of which no 4 KiB are alike, other ones for another `seed`. Fill both
// ends of a copy, with two seeds, before the first sample.
Result<void> paint(const Context& context, const Buffer& buffer, unsigned seed);
// Whether memory holds what paint() put into another buffer of its size: ErrorCode::mismatch names the offset
// of the first piece that differs. Reads everything through the host.
Result<void> check_painted(const Context& context, const Buffer& buffer, unsigned seed);

// Two ends of a copy, painted differently, and the check of the target afterwards.
class PaintedPair {
public:
    // Memory of `bytes` bytes at two places; `from` holds other bytes than `to`.
    static Result<PaintedPair> make(const Context& context, const Place& from, const Place& to, Bytes bytes,
                                    MemoryKind from_kind = MemoryKind::automatic,
                                    MemoryKind to_kind = MemoryKind::automatic);
    const Buffer& from() const { return from_.buffer(); }
    const Buffer& to() const { return to_.buffer(); }
    // Compares the target with what the source was painted with, and marks the figure, unless options say no.
    Result<void> verify(const Context& context, const Options& options, Figure& figure) const;

private:
    Allocation from_, to_;
};

}  // namespace sidestep::bench
