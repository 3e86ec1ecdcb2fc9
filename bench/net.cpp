#include "bench/net.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <numeric>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <sidestep/node.hpp>

#include "base/try.hpp"
#include "bench/text.hpp"

namespace sidestep::bench {
namespace {

// Up to that size the time counts, above it the rate.
constexpr Bytes small = 64_KiB;
constexpr int name_width = 34;
// Pieces of a batch; fewer where they would be more than so much in all.
constexpr std::size_t most_pieces = 100'000;
constexpr Bytes most_of_a_batch = 2_GiB;
// Of pieces below it their number counts, above it their bytes.
constexpr Bytes tiny = 1_KiB;

std::string row(const std::string& what, Bytes bytes, const std::string& rest) {
    std::string line =
        fmt::format("  {:<{}}  {:>9}  {}", what, name_width, bytes > 0 ? format_bytes(bytes) : "", rest);
    line.erase(line.find_last_not_of(' ') + 1);
    return line + "\n";
}

std::string text_row_of(const Figure& figure) {
    const Samples& measured = figure.measured;
    std::string rest =
        fmt::format("{:>7} {:<4}  {:<20}", format_value(measured.median()), figure.unit,
                    fmt::format("[{} .. {}]", format_value(measured.min()), format_value(measured.max())));
    for (const Peer& peer : figure.peers)
        rest += fmt::format("  {:>5.2f} x {}", measured.median() / peer.samples.median(), peer.name);
    if (figure.verified) rest += "  verified";
    return row(figure.what, figure.bytes, rest);
}

bool missing_memory(const Error& error) {
    constexpr std::array codes{ErrorCode::permission_denied, ErrorCode::out_of_memory, ErrorCode::unsupported,
                               ErrorCode::not_found};
    return std::find(codes.begin(), codes.end(), error.code) != codes.end();
}

class NetRun {
public:
    NetRun(const Context& context, const NetPlan& plan, const Options& options, const NetWatch& watch)
        : context_(context), plan_(plan), options_(options), watch_(watch) {
        latency_.key = "net_latency";
        const std::string both = plan.other.empty() ? fmt::format("to {}", plan.node)
                                                    : fmt::format("from {} to {}", plan.node, plan.other);
        latency_.description = fmt::format("a copy of up to {} {} and back", format_bytes(small), both);
        batches_.key = "net_batch";
        batches_.description = fmt::format("many pieces in one batch {} and back", both);
        bandwidth_.key = "net_bandwidth";
        bandwidth_.description = fmt::format("a larger copy {} and back", both);
    }

    Result<std::vector<CaseResult>> run() {
        SIDESTEP_CHECK(past_here() ? open_nodes() : open_plain());
        std::optional<Error> failed;
        for (const Place& here : ends(false))
            for (const Place& there : ends(true))
                if (!failed)
                    if (auto done = both_ways(here, there); !done) failed = done.error();
        if (!failed)
            if (auto done = batches(); !done) failed = done.error();
        if (!failed)
            if (auto done = peers(); !done) failed = done.error();
        if (failed) bandwidth_.failed = failed->to_string();
        return cases();
    }

private:
    // Between two nodes, so that this machine asks alone.
    bool past_here() const { return !plan_.other.empty(); }

    // What is measured of this machine, or the first node; `far`: of the node, or the second.
    std::vector<Place> ends(bool far) const {
        if (!past_here() && !far) return {Place::host(), Place::gpu(plan_.gpu)};
        const std::string& node = far && past_here() ? plan_.other : plan_.node;
        return {Place::host().on(node), Place::gpu(0).on(node)};
    }

    // Nobody opens plain sockets between them.
    Result<void> open_nodes() const {
        for (const std::string& node : {plan_.node, plan_.other}) SIDESTEP_CHECK(topology_of(context_, node));
        return watch_.say(fmt::format("from {} to {} and back; beside it two copies by this machine\n",
                                      plan_.node, plan_.other));
    }

    // As many sockets as copies use, and one.
    Result<void> open_plain() {
        auto all = context_.probe_network(plan_.node);
        if (!all) {
            // A node that has too many of them hangs up.
            const ErrorCode code = all.error().code;
            if (code != ErrorCode::end_of_file && code != ErrorCode::io_error) return all.error();
            plain_missing_ = all.error().to_string();
            return watch_.say(fmt::format("node {}\n", plan_.node));
        }
        plain_.push_back(std::move(*all));
        const NetworkProbe& first = plain_.front();
        if (auto said = watch_.say(fmt::format("node {}: {} at {}; tcp, up to {}\n", plan_.node, first.node(),
                                               first.address(), sockets_text(first.sockets())));
            !said)
            return said;
        if (first.sockets() == 1) return {};
        auto one = context_.probe_network(plan_.node, 1);
        // The others are there, and stand beside all sizes then.
        if (!one) return not_measured("plain sockets (1)", 0, one.error().to_string());
        plain_.push_back(std::move(*one));
        return {};
    }

    static std::string sockets_text(std::size_t count) {
        return count == 1 ? "1 socket" : fmt::format("{} sockets", count);
    }

    Result<void> both_ways(const Place& here, const Place& there) {
        std::string missing = here.is_gpu() && here.node().empty() ? why_no_gpu() : std::string();
        for (const Place& place : {here, there}) {
            if (place.node().empty() || !missing.empty()) continue;
            const auto memory = context_.allocate(place, small);
            if (!memory) missing = memory.error().to_string();
        }
        for (const bool back : {false, true}) {
            const Place& from = back ? there : here;
            const Place& to = back ? here : there;
            auto done =
                missing.empty() ? one_way(from, to, back) : not_measured(name_of(from, to), 0, missing);
            if (!done) return done;
        }
        return {};
    }

    // Empty: there is one.
    std::string why_no_gpu() const {
        std::string why = no_gpu(context_);
        if (why.empty() && !context_.topology().find(Place::gpu(plan_.gpu)))
            why = "there is no such GPU here";
        return why;
    }

    static std::string name_of(const Place& from, const Place& to) {
        return fmt::format("{} -> {}", from.to_string(), to.to_string());
    }

    Result<void> not_measured(const std::string& what, Bytes bytes, const std::string& why) {
        const std::string size = bytes > 0 ? ", " + format_bytes(bytes) : std::string();
        CaseResult& result = bytes > 0 && bytes <= small ? latency_ : bandwidth_;
        result.notes.push_back(fmt::format("{}{}: not measured: {}", what, size, why));
        return watch_.say(row(what, bytes, fmt::format("not measured: {}", why)));
    }

    std::vector<Bytes> sizes() const {
        if (!options_.sizes.empty()) return options_.sizes;
        if (options_.smoke) return {8, 1_MiB};
        return {8, 4_KiB, 64_KiB, 1_MiB, 16_MiB, 256_MiB};
    }

    Result<void> one_way(const Place& from, const Place& to, bool back) {
        // Host memory of both machines is what plain sockets are most like: their own rows stand there.
        const bool plain_rows = from.is_host() && to.is_host() && !past_here();
        if (plain_rows && plain_.empty())
            SIDESTEP_CHECK(not_measured(plain_name(0, back), 0, plain_missing_));
        std::string way;
        for (const Bytes bytes : sizes()) {
            auto pair = PaintedPair::make(context_, from, to, bytes);
            if (!pair && missing_memory(pair.error())) {
                auto said = not_measured(name_of(from, to), bytes, pair.error().to_string());
                if (!said) return said;
                continue;
            }
            if (!pair) return pair.error();
            SIDESTEP_TRY(auto figure, measure(*pair, name_of(from, to), bytes, back));
            figure.from = from.to_string();
            figure.to = to.to_string();
            SIDESTEP_CHECK(pair->verify(context_, options_, figure));
            SIDESTEP_CHECK(keep(figure));
            way = figure.path;
            if (plain_rows) SIDESTEP_CHECK(plain_figures(figure, back));
        }
        return way.empty() ? Result<void>() : watch_.say(fmt::format("    by {}\n", way));
    }

    Result<void> keep(const Figure& figure) {
        return keep(figure, figure.unit == "us" ? latency_ : bandwidth_);
    }

    Result<void> keep(const Figure& figure, CaseResult& result) {
        result.figures.push_back(figure);
        watch_.keep(cases());
        return watch_.say(text_row_of(figure));
    }

    std::vector<CaseResult> cases() const { return {latency_, bandwidth_, batches_}; }

    std::string plain_name(std::size_t sockets, bool back) const {
        const std::string count = sockets > 0 ? fmt::format(" ({})", sockets) : std::string();
        return back ? fmt::format("plain sockets{}: {} -> here", count, plan_.node)
                    : fmt::format("plain sockets{}: here -> {}", count, plan_.node);
    }

    // What stands beside a copy of host memory, as rows of its own.
    Result<void> plain_figures(const Figure& figure, bool back) {
        for (std::size_t i = 0; i < figure.peers.size(); ++i) {
            Figure plain;
            plain.what =
                plain_name(figure.peers.size() > 1 ? plain_[i].sockets() : plain_.back().sockets(), back);
            if (figure.bytes == sizeof(std::uint64_t)) plain.what = "plain sockets: there and back";
            plain.bytes = figure.bytes;
            plain.unit = figure.unit;
            plain.more_is_better = figure.more_is_better;
            plain.measured = figure.peers[i].samples;
            SIDESTEP_CHECK(keep(plain));
        }
        return {};
    }

    // Of so many calls, one after the other.
    static Yardstick repeated(std::string name, int count, std::function<Result<double>()> once) {
        return {std::move(name), [count, once = std::move(once)]() -> Result<double> {
                    double sum = 0;
                    for (int i = 0; i < count; ++i) {
                        const auto seconds = once();
                        if (!seconds) return seconds;
                        sum += *seconds;
                    }
                    return sum / count;
                }};
    }

    std::vector<Yardstick> yardsticks(const PaintedPair& pair, Bytes bytes, bool back, int count) {
        std::vector<Yardstick> all;
        if (past_here()) {
            // One after the other.
            all.push_back(
                repeated("two copies by this machine", count, [this, &pair, bytes]() -> Result<double> {
                    if (between_.buffer().size() != bytes) {
                        SIDESTEP_TRY(auto made, context_.allocate(Place::host(), bytes));
                        between_ = std::move(made);
                    }
                    const auto here = timed_copy(context_, pair.from(), between_.buffer());
                    if (!here) return here;
                    const auto there = timed_copy(context_, between_.buffer(), pair.to());
                    if (!there) return there;
                    return *here + *there;
                }));
        }
        if (plain_.empty()) return all;
        if (bytes == sizeof(std::uint64_t)) {
            all.push_back({"plain sockets", [this, count]() -> Result<double> {
                               const auto seconds = plain_.back().echo(static_cast<std::uint64_t>(count));
                               if (!seconds) return seconds;
                               return *seconds / count;
                           }});
            return all;
        }
        for (NetworkProbe& plain : plain_) {
            if (bytes <= small && &plain != &plain_.back()) continue;
            all.push_back(
                repeated(fmt::format("plain sockets ({})", plain.sockets()), count,
                         [&plain, bytes, back] { return back ? plain.receive(bytes) : plain.send(bytes); }));
        }
        return all;
    }

    Result<Figure> measure(const PaintedPair& pair, const std::string& what, Bytes bytes, bool back) {
        Figure figure;
        figure.what = what;
        figure.bytes = bytes;
        const bool time = bytes <= small;
        figure.unit = time ? "us" : "GB/s";
        figure.more_is_better = !time;
        const int count = !time ? 1 : options_.smoke ? 5 : 100;
        std::string way;
        const Yardstick copy = repeated("", count, [&] {
            return timed_copy(context_, pair.from(), pair.to(), {}, way.empty() ? &way : nullptr);
        });
        const auto value = [&](double seconds) {
            const double some = std::max(seconds, 1e-9);
            return time ? some * 1e6 : static_cast<double>(bytes) / some / 1e9;
        };
        const std::vector<Yardstick> beside = yardsticks(pair, bytes, back, count);
        std::vector<Samples> raw(beside.size());
        for (int round = -1; round < std::max(options_.samples, 1); ++round) {
            SIDESTEP_TRY(const auto seconds, copy.seconds());
            if (round >= 0) figure.measured.values.push_back(value(seconds));
            for (std::size_t i = 0; i < beside.size(); ++i) {
                SIDESTEP_TRY(const auto plain, beside[i].seconds());
                if (round >= 0) raw[i].values.push_back(value(plain));
            }
        }
        for (std::size_t i = 0; i < beside.size(); ++i)
            add_yardstick(figure, beside[i].name, std::move(raw[i]));
        figure.path = way;
        if (!plain_.empty()) figure.path += "; " + sockets_text(plain_.front().sockets_of_copies());
        return figure;
    }

    Result<void> batches() {
        std::vector<Bytes> pieces{8, 16_KiB};
        if (!options_.sizes.empty()) {
            pieces = options_.sizes;
            std::erase_if(pieces, [](Bytes size) { return size > small; });
        }
        for (const Place& near : ends(false))
            for (const Place& far : ends(true))
                for (const bool back : {false, true})
                    for (const Bytes piece : pieces) {
                        auto done = batch(back ? far : near, back ? near : far, piece);
                        if (!done) return done;
                    }
        return {};
    }

    // All pieces of two ends, scattered, as one batch; beside it one copy of as much.
    Result<void> batch(const Place& from, const Place& to, Bytes piece) {
        const std::size_t count =
            options_.smoke ? 1000 : std::clamp<std::size_t>(most_of_a_batch / piece, 1, most_pieces);
        const std::string name = fmt::format("{} pieces, {}", count, name_of(from, to));
        const Bytes all = piece * count;
        const bool gpu_here = (from.is_gpu() && from.node().empty()) || (to.is_gpu() && to.node().empty());
        std::string missing = gpu_here ? why_no_gpu() : std::string();
        auto pair = missing.empty() ? PaintedPair::make(context_, from, to, all)
                                    : Result<PaintedPair>(Error{ErrorCode::not_found, missing, {}, {}});
        if (!pair && missing.empty() && missing_memory(pair.error())) missing = pair.error().to_string();
        if (!pair && missing.empty()) return pair.error();
        if (!missing.empty()) {
            batches_.notes.push_back(fmt::format("{}: not measured: {}", name, missing));
            return watch_.say(row(name, piece, fmt::format("not measured: {}", missing)));
        }
        std::vector<BatchItem> items;
        items.reserve(count);
        for (std::size_t i = 0; i < count; ++i) {
            const Bytes at = i * stride_of(count) % count * piece;
            items.push_back({pair->from().slice(at, piece), pair->to().slice(at, piece)});
        }
        Figure figure;
        figure.what = name;
        figure.from = from.to_string();
        figure.to = to.to_string();
        figure.bytes = piece;
        figure.unit = piece < tiny ? "M/s" : "GB/s";
        const double amount =
            piece < tiny ? static_cast<double>(count) / 1e6 : static_cast<double>(all) / 1e9;
        Samples whole;
        for (int round = -1; round < std::max(options_.samples, 1); ++round) {
            const auto began = std::chrono::steady_clock::now();
            SIDESTEP_TRY(const auto done, context_.copy_batch(items).wait());
            const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
            SIDESTEP_TRY(const auto one, timed_copy(context_, pair->from(), pair->to()));
            if (round < 0) {
                figure.path = words_of(done);
                continue;
            }
            figure.measured.values.push_back(amount / std::max(took.count(), 1e-9));
            whole.values.push_back(amount / std::max(one, 1e-9));
        }
        if (piece >= tiny) add_yardstick(figure, "one copy", std::move(whole));
        SIDESTEP_CHECK(pair->verify(context_, options_, figure));
        return keep(figure, batches_);
    }

    // Next pieces are far from one another; it has no divisor in common with the count.
    static std::size_t stride_of(std::size_t count) {
        std::size_t stride = count / 3 * 2 + 1;
        while (std::gcd(stride, count) != 1) ++stride;
        return stride;
    }

    Result<void> peers() {
        if (plain_.empty()) return {};
        std::string host = plain_.front().address();
        host.erase(host.rfind(':'));
        if (host.starts_with('[')) host = host.substr(1, host.size() - 2);
        std::vector<std::string> missing;
        for (const NetPeer& peer :
             run_net_peers(plan_.node, host, plain_.front().sockets(), options_, missing)) {
            Figure figure;
            figure.what = fmt::format(
                "{}: {}", peer.tool,
                peer.back ? fmt::format("{} -> here", plan_.node) : fmt::format("here -> {}", plan_.node));
            figure.bytes = peer.bytes;
            figure.unit = "GB/s";
            figure.measured.values = {peer.gb_per_s};
            SIDESTEP_CHECK(keep(figure));
        }
        if (missing.empty()) return {};
        std::string line = "other programs were not measured: ";
        for (const std::string& one : missing) line += (&one == &missing.front() ? "" : "; ") + one;
        bandwidth_.notes.push_back(line);
        return watch_.say(line + "\n");
    }

    const Context& context_;
    const NetPlan& plan_;
    const Options& options_;
    const NetWatch& watch_;
    std::vector<NetworkProbe> plain_;  // as many sockets as copies use; one, where that is another number
    std::string plain_missing_;
    Allocation between_;  // memory here, on the way from node to node
    CaseResult latency_, bandwidth_, batches_;
};

}  // namespace

Result<std::vector<CaseResult>> measure_net(const Context& context, const NetPlan& plan,
                                            const Options& options, const NetWatch& watch) {
    return NetRun(context, plan, options, watch).run();
}

}  // namespace sidestep::bench
