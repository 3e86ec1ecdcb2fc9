// A benchmark case: what it measures, where it can run, and figures beside what the hardware can do.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include <sidestep/sidestep.hpp>

namespace sidestep::bench {

// Samples of one quantity.
struct Samples {
    std::vector<double> values;

    double median() const;
    double least() const { return *std::min_element(values.begin(), values.end()); }
    double most() const { return *std::max_element(values.begin(), values.end()); }
};

// One measured quantity beside its limit or peer, both taken in the same run.
struct Figure {
    std::string what;       // "gpu:0 -> gpu:1, 1 GiB"
    std::string unit;       // "GB/s": more is better; "us": less is better
    Samples measured;
    Samples peer;           // empty where there is none
    std::string peer_name;  // "memcpy, 8 threads", "bare cuMemcpyAsync"
};

struct Options {
    bool smoke = false;     // tiny sizes, one sample: only shows that the case works
    int samples = 7;
    Bytes bytes = Bytes{1} << 30;
};

struct Case {
    std::string key;
    std::string description;
    // Empty where the case can run, else why it cannot.
    std::function<std::string(const Context&)> missing;
    std::function<Result<std::vector<Figure>>(const Context&, const Options&)> run;
};

std::vector<Case> host_cases();
std::vector<Case> gpu_cases();
std::vector<Case> topology_cases();

// Runs `once` (which answers seconds) options.samples times after one warm-up, alternating with `peer`
// so that both see the same noise, and turns seconds into GB/s of `bytes`. `peer` may be empty.
Result<Figure> rate_figure(std::string what, Bytes bytes, const Options& options,
                           const std::function<Result<double>()>& once, std::string peer_name,
                           const std::function<double()>& peer);

// Wall seconds of a call.
template <typename Call>
double seconds_of(Call&& call) {
    const auto start = std::chrono::steady_clock::now();
    call();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Wall seconds of one copy, from submission to the end of wait().
Result<double> timed_copy(const Context& context, const Buffer& from, const Buffer& to,
                          const CopyOptions& options = {});

}  // namespace sidestep::bench
