// What a run of the collective benchmark measures, and what it finds: plain data that the processes of a run
// exchange as JSON.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <sidestep/sidestep.hpp>

#include "bench/report.hpp"

namespace sidestep::bench::collective {

enum class Mode { stream, graph };
const char* to_string(Mode mode);

struct Plan {
    std::vector<Collective> operations;
    std::vector<Dtype> types{Dtype::f32};
    std::vector<ReduceOp> reductions{ReduceOp::sum};
    std::vector<Bytes> sizes;  // as nccl-tests counts them: see Call
    std::vector<Mode> modes{Mode::graph, Mode::stream};
    int root = 0;
    int iterations = 20;  // operations of a sample; a quarter of it above 16 MiB
    int launches = 10;  // of a graph of so many operations, one behind the other, in a sample; 1 above 1 MiB
    int warmup = 1;     // samples that do not count
    int samples = 100;  // up to 1 MiB; a tenth of it above, at least 3
    bool verify = true;
    bool zero_sm = false;  // measure the group's copy engines too
    std::string nccl;      // file or name of NCCL's library; empty: not measured

    std::string to_json() const;
    static Result<Plan> from_json(const std::string& text);
};

// One operation at one size.
//
// `bytes` is what nccl-tests calls the size: what one rank sends or receives in all, whichever is more.
// `count` are elements of one rank's block: for all_gather, reduce_scatter, all_to_all, gather and scatter
// bytes / ranks.
struct Call {
    Collective operation = Collective::all_reduce;
    Dtype type = Dtype::f32;
    ReduceOp reduction = ReduceOp::sum;
    std::uint64_t count = 0;
    Bytes bytes = 0;
    Mode mode = Mode::stream;
    bool in_place = false;
};

bool combines(Collective operation);
// Whether `bytes` holds a block for every rank.
bool in_blocks(Collective operation);
// Whether nccl-tests measures it in place.
bool has_in_place(Collective operation);
// What bytes / time is multiplied by for the bandwidth of the links, as in nccl-tests (doc/PERFORMANCE.md).
// all_to_all_v has one block 8 times the rest, from rank 0 to rank 1, and counts what rank 0 sends to others.
double bus_factor(Collective operation, int ranks);
// Elements that rank `from` sends to rank `to` in all_to_all_v of `count` elements a block.
std::uint64_t skewed_count(std::uint64_t count, int from, int to);

// In the order in which every rank measures them. Sizes too small for one element a rank are left out.
// Out of place first, then in place.
std::vector<Call> calls_of(const Plan& plan, int ranks);
// What calls_of() leaves out, a line for each operation and type; empty: nothing.
std::vector<std::string> left_out(const Plan& plan, Collective operation, int ranks);
int iterations_of(const Plan& plan, const Call& call);
int launches_of(const Plan& plan, const Call& call);
int samples_of(const Plan& plan, const Call& call);

// What one library did with one call.
struct Line {
    Call call;
    std::string engine;  // "sidestep", "NCCL 2.28.9, symmetric"
    Samples us;  // of one operation: each sample is the slowest rank's mean over the operations of the sample
    std::int64_t wrong = -1;  // elements on all ranks; -1: not looked at
    std::string path;         // which algorithm, by Group::explain
    std::string missing;      // why it was not measured; empty: it was
};

// Sizes from `first` to `last`, each `factor` times the one before.
std::vector<Bytes> sizes_between(Bytes first, Bytes last, double factor);

// "all", or words between commas, as nccl-tests writes them or as this library does: "float,bf16", "sum,max",
// "all_reduce".
Result<std::vector<Dtype>> parse_types(const std::string& text);
Result<std::vector<ReduceOp>> parse_reductions(const std::string& text);
Result<std::vector<Collective>> parse_operations(const std::string& text);
// As in the column of nccl-tests: "float", "bfloat16", "f8e4m3".
std::string type_word(Dtype type);
std::string reduction_word(const Call& call);

// The lines of all ranks as one: the slowest rank of each sample, all wrong elements. Fails where the ranks
// measured different things.
Result<std::vector<Line>> merge(const std::vector<std::vector<Line>>& ranks);

// The value that `share` (0 to 1) of the samples do not exceed; 0 where there is none.
double quantile(const Samples& samples, double share);

}  // namespace sidestep::bench::collective
