#include "bench/collective/plan.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

#include <fmt/format.h>

namespace sidestep::bench::collective {
namespace {

constexpr Bytes small = 1_MiB;
constexpr Bytes huge = 16_MiB;
constexpr std::uint64_t skew = 8;

struct TypeName {
    Dtype type;
    const char* nccl;   // as nccl-tests prints it
    const char* other;  // further word
};
constexpr TypeName type_names[] = {{Dtype::i8, "int8", "i8"},
                                   {Dtype::u8, "uint8", "u8"},
                                   {Dtype::i32, "int32", "i32"},
                                   {Dtype::u32, "uint32", "u32"},
                                   {Dtype::i64, "int64", "i64"},
                                   {Dtype::u64, "uint64", "u64"},
                                   {Dtype::f16, "half", "f16"},
                                   {Dtype::f32, "float", "f32"},
                                   {Dtype::f64, "double", "f64"},
                                   {Dtype::bf16, "bfloat16", "bf16"},
                                   {Dtype::f8_e4m3, "f8e4m3", "f8_e4m3"},
                                   {Dtype::f8_e5m2, "f8e5m2", "f8_e5m2"}};

struct ReductionName {
    ReduceOp op;
    const char* nccl;
};
constexpr ReductionName reduction_names[] = {{ReduceOp::sum, "sum"}, {ReduceOp::prod, "prod"},
                                             {ReduceOp::min, "min"}, {ReduceOp::max, "max"},
                                             {ReduceOp::avg, "avg"}, {ReduceOp::scaled_sum, "mulsum"}};

constexpr Collective every_operation[] = {
    Collective::all_reduce,     Collective::broadcast,  Collective::reduce,       Collective::all_gather,
    Collective::reduce_scatter, Collective::all_to_all, Collective::all_to_all_v, Collective::gather,
    Collective::scatter,        Collective::send_recv,  Collective::barrier};

// Calls with each word between commas; every word is "all" or known to `find`.
template <typename T, typename Find>
Result<std::vector<T>> parse_list(const std::string& text, const char* what, const std::vector<T>& all,
                                  Find&& find) {
    std::vector<T> list;
    for (std::size_t begin = 0; begin <= text.size();) {
        const std::size_t end = std::min(text.find(',', begin), text.size());
        const std::string word = text.substr(begin, end - begin);
        begin = end + 1;
        if (word == "all") {
            list.insert(list.end(), all.begin(), all.end());
            continue;
        }
        const std::optional<T> found = find(word);
        if (!found)
            return Error{ErrorCode::invalid_argument, fmt::format("'{}' is no {}", word, what), text,
                         "sidestep help bench collective lists them"};
        list.push_back(*found);
    }
    return list;
}

// Of an operation with one element in each block.
Bytes min_bytes(Collective operation, Dtype type, int ranks) {
    const auto n = static_cast<std::uint64_t>(ranks);
    const std::uint64_t parts = in_blocks(operation)                    ? n
                                : operation == Collective::all_to_all_v ? n - 1 + skew
                                                                        : 1;
    return static_cast<Bytes>(bits_of(type)) / 8 * parts;
}

}  // namespace

const char* to_string(Mode mode) {
    return mode == Mode::graph ? "graph" : "stream";
}

bool combines(Collective operation) {
    return operation == Collective::all_reduce || operation == Collective::reduce ||
           operation == Collective::reduce_scatter;
}

bool in_blocks(Collective operation) {
    return operation == Collective::all_gather || operation == Collective::reduce_scatter ||
           operation == Collective::all_to_all || operation == Collective::gather ||
           operation == Collective::scatter;
}

bool has_in_place(Collective operation) {
    return operation != Collective::all_to_all && operation != Collective::all_to_all_v &&
           operation != Collective::send_recv && operation != Collective::barrier;
}

double bus_factor(Collective operation, int ranks) {
    const double n = ranks;
    if (operation == Collective::all_reduce) return 2 * (n - 1) / n;
    if (operation == Collective::all_to_all_v)
        return (static_cast<double>(skew) + n - 2) / (static_cast<double>(skew) + n - 1);
    return in_blocks(operation) ? (n - 1) / n : 1;
}

std::uint64_t skewed_count(std::uint64_t count, int from, int to) {
    return from == 0 && to == 1 ? skew * count : count;
}

std::vector<Call> calls_of(const Plan& plan, int ranks) {
    std::vector<Call> calls;
    for (const Collective operation : plan.operations)
        for (const Mode mode : plan.modes)
            for (const Dtype type : plan.types)
                for (const ReduceOp reduction : plan.reductions) {
                    // Of what combines nothing one reduction is all of them, and a barrier has no types and
                    // sizes either.
                    if (!combines(operation) && reduction != plan.reductions.front()) continue;
                    const bool barrier = operation == Collective::barrier;
                    if (barrier && type != plan.types.front()) continue;
                    const Bytes min = min_bytes(operation, type, ranks);
                    for (const Bytes bytes : barrier ? std::vector<Bytes>{0} : plan.sizes) {
                        const std::uint64_t count = bytes / min;
                        if (count == 0 && !barrier) continue;
                        Call call{operation, type, reduction, count, count * min, mode, false};
                        calls.push_back(call);
                        call.in_place = true;
                        if (has_in_place(operation)) calls.push_back(call);
                    }
                }
    return calls;
}

std::vector<std::string> left_out(const Plan& plan, Collective operation, int ranks) {
    std::vector<std::string> lines;
    if (operation == Collective::barrier) return lines;
    for (const Dtype type : plan.types) {
        const Bytes min = min_bytes(operation, type, ranks);
        const bool all =
            std::all_of(plan.sizes.begin(), plan.sizes.end(), [min](Bytes bytes) { return bytes >= min; });
        if (!all)
            lines.push_back(
                fmt::format("{} {}: sizes below {} are left out, which hold no element for each of {} ranks",
                            to_string(operation), type_word(type), format_bytes(min), ranks));
    }
    return lines;
}

int iterations_of(const Plan& plan, const Call& call) {
    return call.bytes > huge ? std::max(1, plan.iterations / 4) : std::max(1, plan.iterations);
}

// The first launch of a graph reaches the GPU behind the event that begins a sample.
int launches_of(const Plan& plan, const Call& call) {
    return call.mode == Mode::graph && call.bytes <= small ? std::max(1, plan.launches) : 1;
}

int samples_of(const Plan& plan, const Call& call) {
    return call.bytes > small ? std::min(std::max(3, plan.samples / 10), std::max(1, plan.samples))
                              : std::max(1, plan.samples);
}

std::vector<Bytes> sizes_between(Bytes first, Bytes last, double factor) {
    std::vector<Bytes> sizes;
    for (double size = static_cast<double>(first); size <= static_cast<double>(last) * 1.0000001;
         size *= factor) {
        sizes.push_back(static_cast<Bytes>(size + 0.5));
        if (factor <= 1 || first == 0) break;
    }
    return sizes;
}

Result<std::vector<Dtype>> parse_types(const std::string& text) {
    std::vector<Dtype> all;
    for (const TypeName& name : type_names) all.push_back(name.type);
    return parse_list<Dtype>(text, "type of NCCL", all, [](const std::string& word) -> std::optional<Dtype> {
        for (const TypeName& name : type_names)
            if (word == name.nccl || word == name.other) return name.type;
        return std::nullopt;
    });
}

Result<std::vector<ReduceOp>> parse_reductions(const std::string& text) {
    std::vector<ReduceOp> all;
    for (const ReductionName& name : reduction_names) all.push_back(name.op);
    return parse_list<ReduceOp>(text, "reduction", all,
                                [](const std::string& word) -> std::optional<ReduceOp> {
                                    for (const ReductionName& name : reduction_names)
                                        if (word == name.nccl || word == to_string(name.op)) return name.op;
                                    return std::nullopt;
                                });
}

Result<std::vector<Collective>> parse_operations(const std::string& text) {
    const std::vector<Collective> all(std::begin(every_operation), std::end(every_operation));
    return parse_list<Collective>(text, "collective", all,
                                  [&](const std::string& word) -> std::optional<Collective> {
                                      for (const Collective operation : all)
                                          if (word == to_string(operation)) return operation;
                                      return std::nullopt;
                                  });
}

std::string type_word(Dtype type) {
    for (const TypeName& name : type_names)
        if (name.type == type) return name.nccl;
    return std::string(to_string(type));
}

std::string reduction_word(const Call& call) {
    if (!combines(call.operation)) return "none";
    for (const ReductionName& name : reduction_names)
        if (name.op == call.reduction) return name.nccl;
    return "none";
}

Result<std::vector<Line>> merge(const std::vector<std::vector<Line>>& ranks) {
    if (ranks.empty()) return std::vector<Line>{};
    std::vector<Line> merged = ranks.front();
    const Error different{
        ErrorCode::internal, "the ranks did not measure the same things", "bench collective", {}};
    for (std::size_t r = 1; r < ranks.size(); ++r) {
        if (ranks[r].size() != merged.size()) return different;
        for (std::size_t i = 0; i < merged.size(); ++i) {
            Line& into = merged[i];
            const Line& line = ranks[r][i];
            if (line.engine != into.engine || line.call.bytes != into.call.bytes) return different;
            if (into.missing.empty()) into.missing = line.missing;
            if (line.us.values.size() != into.us.values.size()) return different;
            for (std::size_t k = 0; k < line.us.values.size(); ++k)
                into.us.values[k] = std::max(into.us.values[k], line.us.values[k]);
            if (line.wrong >= 0) into.wrong = std::max<std::int64_t>(into.wrong, 0) + line.wrong;
        }
    }
    return merged;
}

double quantile(const Samples& samples, double share) {
    if (samples.empty()) return 0;
    std::vector<double> sorted = samples.values;
    std::sort(sorted.begin(), sorted.end());
    const double rank = std::ceil(share * static_cast<double>(sorted.size()));
    return sorted[static_cast<std::size_t>(std::clamp(rank, 1.0, static_cast<double>(sorted.size()))) - 1];
}

}  // namespace sidestep::bench::collective
