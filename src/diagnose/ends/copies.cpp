// Real bytes to a node's memory and back.
#include <algorithm>
#include <cstring>
#include <random>

#include <fmt/format.h>
#include <sidestep/allocation.hpp>

#include "base/median.hpp"
#include "base/try.hpp"
#include "diagnose/ends/ends.hpp"
#include "driver/random.hpp"
#include "topology/numbers.hpp"

namespace sidestep::diagnose {
namespace {

constexpr int rounds = 3;
constexpr std::size_t most_gpus = 64;
constexpr EndCheck copy_check{"end-copy", "A copy to the node and back",
                              "Copies to this place fail, or bring wrong bytes.",
                              "Do not use this way before the cause is found: SIDESTEP_NETWORK=tcp leaves "
                              "RDMA out, and --verify compares each copy.",
                              nullptr};

// Of the rounds, each way.
struct Rates {
    std::vector<double> there;
    std::vector<double> back;
    std::vector<std::string> notes;
};

class Copies {
public:
    Copies(const Context& context, Allocation sent, Allocation came)
        : context_(context),
          sent_(std::move(sent)),
          came_(std::move(came)),
          chance_(driver::random_number()) {}

    Outcome try_place(const Place& place) {
        auto there = context_.allocate(place, sent_.buffer().size());
        if (!there && there.error().code == ErrorCode::permission_denied)
            return does_not_apply(fmt::format("{} is not allowed", place.to_string()));
        if (!there) return fail(fmt::format("no memory at {}: {}", place.to_string(), there.error().message));
        Rates rates;
        for (int round = 0; round < rounds; ++round) {
            const auto wrong = go_round(there->buffer(), rates);
            if (!wrong) return fail(fmt::format("{}: {}", place.to_string(), wrong.error().to_string()));
            if (*wrong)
                return fail(fmt::format("{} gave back other bytes than it was given, from byte {} of {} on",
                                        place.to_string(), **wrong, sent_.buffer().size()));
        }
        return tell(place, rates);
    }

private:
    Result<void> copy(const Buffer& from, const Buffer& to, std::vector<double>& rates, Rates& all) {
        SIDESTEP_TRY(const Receipt receipt, context_.copy(from, to).wait());
        rates.push_back(receipt.seconds > 0 ? static_cast<double>(receipt.bytes) / receipt.seconds / 1e9 : 0);
        all.notes = receipt.notes;
        return {};
    }

    // Bytes that no round has sent before; where the first wrong one came back, if one did.
    Result<std::optional<Bytes>> go_round(const Buffer& there, Rates& rates) {
        auto* const words = static_cast<std::uint64_t*>(sent_.buffer().address());
        const Bytes size = sent_.buffer().size();
        for (Bytes i = 0; i < size / sizeof(std::uint64_t); ++i) words[i] = chance_();
        std::memset(came_.buffer().address(), 0, size);
        SIDESTEP_CHECK(copy(sent_.buffer(), there, rates.there, rates));
        SIDESTEP_CHECK(copy(there, came_.buffer(), rates.back, rates));
        const auto* const a = static_cast<const unsigned char*>(sent_.buffer().address());
        const auto* const b = static_cast<const unsigned char*>(came_.buffer().address());
        const auto* const wrong = std::mismatch(a, a + size, b).first;
        return wrong == a + size ? std::optional<Bytes>() : std::optional(static_cast<Bytes>(wrong - a));
    }

    Outcome tell(const Place& place, const Rates& rates) const {
        Outcome outcome =
            pass(fmt::format("{} of random bytes to {} at {}, and back at {}, all as they were",
                             format_bytes(sent_.buffer().size()), place.to_string(),
                             format_rate(base::median(rates.there)), format_rate(base::median(rates.back))));
        for (const std::string& note : rates.notes) outcome.saw("copy", note);
        return outcome;
    }

    const Context& context_;
    const Allocation sent_;
    const Allocation came_;
    std::mt19937_64 chance_;
};

Finding finding_for(const std::string& id, Outcome outcome) {
    Finding finding = finding_of(copy_check, std::move(outcome));
    finding.id = id;
    return finding;
}

}  // namespace

Result<std::vector<Finding>> try_copies(const Context& context, const std::string& node, Bytes bytes) {
    bytes = std::max<Bytes>(bytes / sizeof(std::uint64_t), 1) * sizeof(std::uint64_t);
    SIDESTEP_TRY(const Topology topology, topology_of(context, node));
    SIDESTEP_TRY(Allocation sent, context.allocate(Place::host(), bytes));
    SIDESTEP_TRY(Allocation came, context.allocate(Place::host(), bytes));
    Copies copies(context, std::move(sent), std::move(came));
    std::vector<Finding> findings;
    findings.push_back(finding_for("end-copy-host", copies.try_place(Place::host().on(node))));
    auto gpus = topology::numbers_of(topology, DeviceKind::gpu);
    if (gpus.size() > most_gpus) gpus.resize(most_gpus);
    for (const int gpu : gpus)
        findings.push_back(
            finding_for(fmt::format("end-copy-gpu-{}", gpu), copies.try_place(Place::gpu(gpu).on(node))));
    return findings;
}

}  // namespace sidestep::diagnose
