#include <sidestep/probe.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include <sidestep/allocation.hpp>

#include "base/median.hpp"
#include "base/try.hpp"
#include "topology/numbers.hpp"

namespace sidestep {

namespace {

constexpr Bytes smallest = 4096;
constexpr int max_gpus = 32;

// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators): no word comes twice, so
// bytes that arrive at another place show.
std::uint64_t word(std::uint64_t number) {
    std::uint64_t z = number * 0x9e3779b97f4a7c15ULL;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
}

void fill(const Allocation& memory, std::uint64_t seed) {
    auto* words = static_cast<std::uint64_t*>(memory.buffer().address());
    for (Bytes i = 0; i < memory.buffer().size() / sizeof(std::uint64_t); ++i) words[i] = word(seed + i);
}

struct Engine {
    const char* name;
    Prefer prefer;
};

constexpr Engine engines[] = {{"copy engine", Prefer::copy_engine}, {"kernel", Prefer::kernel}};

class Prober {
public:
    Prober(const Context& context, const ProbeOptions& options) : context_(context), options_(options) {}

    Result<ProbeReport> run();

private:
    Result<void> probe(int from, int to, ProbeReport& report);
    Result<void> check(int from, int to, const CopyOptions& options, PairProbe& probe);
    Result<double> time(const Buffer& from, const Buffer& to, const CopyOptions& options);
    Result<void> copy(const Buffer& from, const Buffer& to, const CopyOptions& options = {});
    Result<PairProbe> probe_engine(int from, int to, const Engine& engine);

    const Context& context_;
    ProbeOptions options_;
    std::map<int, Allocation> sources_;  // by GPU
    std::map<int, Allocation> targets_;
    std::vector<Allocation> host_;  // what is sent, and what comes back
    std::uint64_t seed_ = 1;
};

Result<void> Prober::copy(const Buffer& from, const Buffer& to, const CopyOptions& options) {
    const auto done = context_.copy(from, to, options).wait();
    if (!done.ok()) return done.error();
    return {};
}

// The median rate of the repeats.
Result<double> Prober::time(const Buffer& from, const Buffer& to, const CopyOptions& options) {
    std::vector<double> rates;
    for (int i = 0; i < options_.repeats; ++i) {
        SIDESTEP_TRY(const Receipt receipt, context_.copy(from, to, options).wait());
        rates.push_back(receipt.seconds > 0 ? static_cast<double>(receipt.bytes) / receipt.seconds / 1e9 : 0);
    }
    return base::median(std::move(rates));
}

// Sends a pattern that was never sent before, to a target that holds another one, and looks at every byte.
Result<void> Prober::check(int from, int to, const CopyOptions& options, PairProbe& probe) {
    const Buffer& source = sources_.at(from).buffer();
    const Buffer& target = targets_.at(to).buffer();
    const Buffer& sent = host_[0].buffer();
    const Buffer& came = host_[1].buffer();
    fill(host_[1], seed_ << 40);
    SIDESTEP_CHECK(copy(came, target));
    ++seed_;
    fill(host_[0], seed_ << 40);
    ++seed_;
    SIDESTEP_CHECK(copy(sent, source));
    SIDESTEP_CHECK(copy(source, target, options));
    std::memset(came.address(), 0, came.size());
    SIDESTEP_CHECK(copy(target, came));
    const auto* a = static_cast<const unsigned char*>(sent.address());
    const auto* b = static_cast<const unsigned char*>(came.address());
    const auto wrong = std::mismatch(a, a + sent.size(), b);
    probe.intact = wrong.first == a + sent.size();
    if (!probe.intact) probe.wrong_at = static_cast<Bytes>(wrong.first - a);
    return {};
}

Result<PairProbe> Prober::probe_engine(int from, int to, const Engine& engine) {
    const Topology& topology = context_.topology();
    PairProbe probe;
    probe.from = from;
    probe.to = to;
    probe.from_bus_id = topology.device(*topology.find(Place::gpu(from))).bus_id;
    probe.to_bus_id = topology.device(*topology.find(Place::gpu(to))).bus_id;
    probe.engine = engine.name;
    CopyOptions options;
    options.require = Require::direct;
    options.prefer = engine.prefer;
    const Buffer& source = sources_.at(from).buffer();
    const Buffer& target = targets_.at(to).buffer();
    const auto route = context_.route(source, target, options);
    if (!route.ok()) {
        if (route.error().code != ErrorCode::path_unavailable) return route.error();
        probe.refusal = topology.peer_access(from, to).reason;
        if (probe.refusal.empty()) probe.refusal = route.error().message;
        return probe;
    }
    const std::string& carries = route->lanes.front().hops.front().engine;
    if (carries.find(engine.name) == std::string::npos) {
        probe.refusal = fmt::format("no {} can carry these bytes, only the {}", engine.name, carries);
        return probe;
    }
    probe.direct = true;
    probe.expected_gb_per_s = route->expected_gb_per_s;
    SIDESTEP_CHECK(check(from, to, options, probe));
    SIDESTEP_TRY(probe.gb_per_s, time(source, target, options));
    return probe;
}

Result<void> Prober::probe(int from, int to, ProbeReport& report) {
    CopyOptions bounce;
    bounce.require = Require::host;
    SIDESTEP_TRY(const double bounced, time(sources_.at(from).buffer(), targets_.at(to).buffer(), bounce));
    for (const Engine& engine : engines) {
        SIDESTEP_TRY(PairProbe probe, probe_engine(from, to, engine));
        probe.bounce_gb_per_s = bounced;
        report.pairs.push_back(std::move(probe));
    }
    return {};
}

Result<ProbeReport> Prober::run() {
    const Topology& topology = context_.topology();
    const std::vector<int> gpus = topology::numbers_of(topology, DeviceKind::gpu);
    const Bytes bytes = options_.bytes / sizeof(std::uint64_t) * sizeof(std::uint64_t);
    options_.repeats = std::max(options_.repeats, 1);
    for (const int gpu : gpus) {
        SIDESTEP_TRY(Allocation source, context_.allocate(Place::gpu(gpu), bytes));
        SIDESTEP_TRY(Allocation target, context_.allocate(Place::gpu(gpu), bytes));
        sources_.emplace(gpu, std::move(source));
        targets_.emplace(gpu, std::move(target));
    }
    for (int i = 0; i < 2; ++i) {
        SIDESTEP_TRY(Allocation host, context_.allocate(Place::host(), bytes));
        host_.push_back(std::move(host));
    }
    ProbeReport report;
    report.machine = topology.name();
    report.emulated = topology.emulated();
    report.bytes = bytes;
    int done = 0;
    const int all = topology.gpu_count() * (topology.gpu_count() - 1);
    if (options_.progress && !options_.progress(done, all)) return report;
    for (const int from : gpus) {
        for (const int to : gpus) {
            if (from == to) continue;
            SIDESTEP_CHECK(probe(from, to, report));
            if (options_.progress && !options_.progress(++done, all)) return report;
        }
    }
    return report;
}

}  // namespace

Result<ProbeReport> probe_pairs(const Context& context, const ProbeOptions& options) {
    if (context.topology().gpu_count() < 2) {
        return Error{ErrorCode::unsupported, "a probe needs two GPUs", context.topology().name(),
                     "sidestep doctor without --probe checks machines with fewer"};
    }
    if (context.topology().gpu_count() > max_gpus) {
        return Error{ErrorCode::unsupported,
                     fmt::format("a probe of {} GPUs would take hours", context.topology().gpu_count()),
                     context.topology().name(), fmt::format("it takes machines of up to {} GPUs", max_gpus)};
    }
    if (options.bytes < smallest) {
        return Error{ErrorCode::invalid_argument,
                     fmt::format("a probe copies at least {}, not {}", format_bytes(smallest),
                                 format_bytes(options.bytes)),
                     "bytes", ""};
    }
    return Prober(context, options).run();
}

}  // namespace sidestep
