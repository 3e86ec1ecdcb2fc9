#include "bench/collective/table.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include <fmt/format.h>

namespace sidestep::bench::collective {
namespace {

bool is_ours(const Line& line) {
    return line.engine.starts_with("sidestep");
}
bool measured(const Line* line) {
    return line != nullptr && !line->us.empty();
}

// What stands under one heading.
auto heading_of(const Call& call) {
    return std::make_tuple(call.operation, call.mode, call.type,
                           combines(call.operation) ? call.reduction : ReduceOp::sum);
}
bool same_row(const Call& a, const Call& b) {
    return heading_of(a) == heading_of(b) && a.bytes == b.bytes && a.count == b.count;
}
bool same_call(const Call& a, const Call& b) {
    return same_row(a, b) && a.in_place == b.in_place;
}

struct Row {
    const Line* out = nullptr;
    const Line* in = nullptr;
};

// The quickest of the lines for this call whose engine fits.
template <typename Fits>
const Line* quickest(const std::vector<Line>& lines, const Call& row, bool in_place, Fits&& fits) {
    const Line* best = nullptr;
    for (const Line& line : lines) {
        if (!same_row(line.call, row) || line.call.in_place != in_place || line.us.empty() || !fits(line))
            continue;
        if (!best || line.us.median() < best->us.median()) best = &line;
    }
    return best;
}

double gb_per_s(const Line& line) {
    const double us = line.us.median();
    return us > 0 ? static_cast<double>(line.call.bytes) / us / 1000 : 0;
}

std::string half(const Line* line, int ranks) {
    if (!measured(line)) return fmt::format("{:>10} {:>10} {:>8} {:>8} {:>7}", "-", "-", "-", "-", "-");
    const double rate = gb_per_s(*line);
    return fmt::format("{:>10.2f} {:>10.2f} {:>8.2f} {:>8.2f} {:>7}", line->us.median(),
                       quantile(line->us, 0.99), rate, rate * bus_factor(line->call.operation, ranks),
                       line->wrong < 0 ? "-" : std::to_string(line->wrong));
}

std::string row_text(const Call& call, int root, const Row& row, int ranks, const std::string& times,
                     const std::string& engine) {
    const bool rooted = call.operation == Collective::broadcast || call.operation == Collective::reduce ||
                        call.operation == Collective::gather || call.operation == Collective::scatter;
    return fmt::format("{:>12} {:>12} {:>9} {:>7} {:>5} {} {} {:>6}  {}\n", call.bytes, call.count,
                       type_word(call.type), reduction_word(call), rooted ? root : -1, half(row.out, ranks),
                       half(row.in, ranks), times, engine);
}

std::string head(const Call& call, int ranks, const std::string& how) {
    const std::string sides =
        fmt::format("{:>10} {:>10} {:>8} {:>8} {:>7}", "time", "p99", "algbw", "busbw", "#wrong");
    const std::string units =
        fmt::format("{:>10} {:>10} {:>8} {:>8} {:>7}", "(us)", "(us)", "(GB/s)", "(GB/s)", "");
    return fmt::format("# {}, {}, {} ranks, {}; times are medians of the slowest rank\n",
                       to_string(call.operation),
                       call.mode == Mode::graph ? "in a CUDA graph" : "on a stream", ranks, how) +
           fmt::format("#{:>48} {:^47} {:^47}\n", "", "out of place", "in place") +
           fmt::format("#{:>11} {:>12} {:>9} {:>7} {:>5} {} {} {:>6}\n", "size", "count", "type", "redop",
                       "root", sides, sides, "times") +
           fmt::format("#{:>11} {:>12} {:>9} {:>7} {:>5} {} {}\n", "(B)", "(elements)", "", "", "", units,
                       units);
}

// Geometric mean of how many times as quick this library is, out of place, under one heading; 0 without NCCL.
class Mean {
public:
    void add(const Line* ours, const Line* theirs) {
        if (!measured(ours) || !measured(theirs) || ours->us.median() <= 0) return;
        sum_ += std::log(theirs->us.median() / ours->us.median());
        ++count_;
    }
    double value() const { return count_ > 0 ? std::exp(sum_ / count_) : 0; }

private:
    double sum_ = 0;
    int count_ = 0;
};

std::string times_of(const Line* ours, const Line* theirs) {
    if (!measured(ours) || !measured(theirs) || ours->us.median() <= 0) return "";
    return fmt::format("{:.2f}", theirs->us.median() / ours->us.median());
}

// The rows of one size: ours, the copy engines', NCCL's best.
std::string rows_of(const std::vector<Line>& lines, const Call& call, int ranks, int root, Mean& best,
                    Mean& standard) {
    const auto plain = [](const Line& line) { return line.engine == "sidestep"; };
    const auto engines = [](const Line& line) { return is_ours(line) && line.engine != "sidestep"; };
    const auto nccl = [](const Line& line) { return !is_ours(line); };
    const auto nccl_default = [](const Line& line) {
        return !is_ours(line) && line.engine.ends_with("default");
    };
    const auto row = [&](const auto& fits) {
        return Row{quickest(lines, call, false, fits), quickest(lines, call, true, fits)};
    };
    const Row ours = row(plain), by_engine = row(engines), theirs = row(nccl);
    best.add(ours.out, theirs.out);
    standard.add(ours.out, quickest(lines, call, false, nccl_default));
    std::string text = row_text(call, root, ours, ranks, times_of(ours.out, theirs.out), "sidestep");
    if (by_engine.out) text += row_text(call, root, by_engine, ranks, "", by_engine.out->engine);
    if (!theirs.out) return text;
    std::string name = theirs.out->engine;
    if (theirs.in && theirs.in->engine != name) name += fmt::format(" / {}", theirs.in->engine);
    return text + row_text(call, root, theirs, ranks, "", name);
}

std::string name_of(const Line& line) {
    std::string name(to_string(line.call.operation));
    if (line.engine != "sidestep") name += ", copy engines";
    if (line.call.operation == Collective::barrier)
        return fmt::format("{}, {}", name, to_string(line.call.mode));
    name += fmt::format(" {}", type_word(line.call.type));
    if (combines(line.call.operation)) name += fmt::format(" {}", reduction_word(line.call));
    return fmt::format("{}, {}, {}", name, to_string(line.call.mode),
                       line.call.in_place ? "in place" : "out of place");
}

Samples rates(const Line& line, int ranks) {
    Samples rates;
    const double bytes = static_cast<double>(line.call.bytes) * bus_factor(line.call.operation, ranks);
    for (const double us : line.us.values) rates.values.push_back(bytes / std::max(us, 1e-3) / 1000);
    return rates;
}

// What kernels reach of a link: stores carry 128 bytes where the copy engines' carry 256. 370 to 396 GB/s on
// H200, by nvbandwidth 0.8 (docs/lab-book.md).
constexpr double kernels_share = 370.0 / 396;

void add_limit(Figure& figure, const Context& context, const std::vector<int>& gpus, bool copy_engines) {
    const Topology& topology = context.topology();
    if (topology.emulated()) return;
    for (const int from : gpus)
        for (const int to : gpus) {
            const auto a = topology.find(Place::gpu(from)), b = topology.find(Place::gpu(to));
            if (from == to || !a || !b) continue;
            const Pair pair = topology.pair(*a, *b);
            const double rate = pair.gb_per_s * (copy_engines ? 1 : kernels_share);
            if (rate <= 0 || (figure.limit > 0 && rate >= figure.limit)) continue;
            figure.limit = rate;
            figure.limit_source =
                fmt::format("link: {}{}", pair.words, copy_engines ? "" : ", as kernels reach it");
        }
}

}  // namespace

struct Table::State {
    int ranks, root;
    std::string how;
    std::optional<Call> heading;
    Mean best, standard;
};

Table::Table(int ranks, int root, std::string how)
    : state_(std::make_unique<State>(State{ranks, root, std::move(how), {}, {}, {}})) {}
Table::~Table() = default;

std::string Table::rows(const std::vector<Line>& lines) {
    std::string text;
    const Call* last = nullptr;
    for (const Line& line : lines) {
        if (last && same_row(*last, line.call)) continue;
        last = &line.call;
        if (!state_->heading || heading_of(*state_->heading) != heading_of(*last)) {
            text += end() + head(*last, state_->ranks, state_->how);
            state_->heading = *last;
        }
        text += rows_of(lines, *last, state_->ranks, state_->root, state_->best, state_->standard);
    }
    return text;
}

std::string Table::end() {
    if (!state_->heading) return {};
    const Mean best = std::exchange(state_->best, {}), standard = std::exchange(state_->standard, {});
    state_->heading.reset();
    if (best.value() <= 0) return "\n";
    return fmt::format(
        "# geometric mean, out of place: {:.2f} times as quick as NCCL's best mode of each size, {:.2f} "
        "times as quick as its default\n\n",
        best.value(), standard.value());
}

std::vector<Figure> figures_of(const Context& context, const std::vector<int>& gpus,
                               const std::vector<Line>& lines) {
    std::vector<Figure> figures;
    const int ranks = static_cast<int>(gpus.size());
    for (const Line& line : lines) {
        if (!is_ours(line) || line.us.empty()) continue;
        Figure time;
        time.what = name_of(line) + ", time";
        time.bytes = line.call.bytes;
        time.unit = "us";
        time.more_is_better = false;
        time.measured = line.us;
        time.verified = line.wrong == 0;
        time.path = line.path;
        Figure rate = time;
        rate.what = name_of(line) + ", bus bandwidth";
        rate.unit = "GB/s";
        rate.more_is_better = true;
        rate.measured = rates(line, ranks);
        for (const Line& other : lines) {
            if (is_ours(other) || other.us.empty() || !same_call(other.call, line.call)) continue;
            time.peers.push_back({other.engine, other.us});
            rate.peers.push_back({other.engine, rates(other, ranks)});
        }
        figures.push_back(std::move(time));
        if (line.call.operation == Collective::barrier) continue;
        add_limit(rate, context, gpus, line.engine != "sidestep");
        figures.push_back(std::move(rate));
    }
    return figures;
}

std::int64_t wrong_of(const std::vector<Line>& lines) {
    std::int64_t sum = -1;
    for (const Line& line : lines)
        if (is_ours(line) && line.wrong >= 0) sum = std::max<std::int64_t>(sum, 0) + line.wrong;
    return sum;
}

}  // namespace sidestep::bench::collective
