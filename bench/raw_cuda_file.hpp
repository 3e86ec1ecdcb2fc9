// A file to GPUs and back as a plain program moves it: threads with two pinned slots each. The yardstick of loads
// and saves, which go through pinned memory too.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <sidestep/result.hpp>
#include <sidestep/units.hpp>

namespace sidestep::bench::raw {

struct StagedLoop {
    std::string path;
    Bytes bytes = 0;
    std::vector<int> gpus;  // numbered as in raw_cuda.hpp; each thread serves one of them, in turn
    int threads = 1;
    // Else from the file to the GPUs, each byte to one of them.
    bool write = false;  // into a file that is made anew
    bool mapped =
        false;  // write: through a map of the file, as suits one that lives in memory; else by pwrite
};

// What such a loop needs beside the file: pinned slots, streams, and up to 1 GiB of memory on each GPU, over
// which larger files are laid in turns. One thread at a time.
class StagedThreads {
public:
    static Result<StagedThreads> make(StagedLoop loop);
    // The number of threads, of 4, 8, 16, 32 and 64 but at most one for each processor, with which it is quickest here;
    // `loop.threads` is not used.
    static Result<StagedThreads> best(StagedLoop loop);
    StagedThreads(StagedThreads&&) noexcept;
    ~StagedThreads();

    int threads() const;
    // Seconds until all bytes have arrived. The threads are started before the clock; to make the file anew,
    // its space and its map are on it.
    Result<double> seconds();

private:
    struct State;
    explicit StagedThreads(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
};

}  // namespace sidestep::bench::raw
