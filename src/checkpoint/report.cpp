#include "checkpoint/report.hpp"

#include <fmt/format.h>

#include "base/object_store.hpp"
#include "checkpoint/layout.hpp"

namespace sidestep::checkpoint {
namespace {

// Less than this a place, and slots are too few for reads and copies to overlap (a chunk is a few MiB).
constexpr Bytes little_staging = Bytes{64} << 20;
constexpr double full_share = 0.8;  // of the expected rate: the links carry what they can

// Verification comes when everything has arrived.
bool moves(const Stage& stage) {
    return stage.name != "verify";
}

std::string names_of(const std::vector<Place>& places) {
    std::string text;
    for (const Place& place : places)
        text += fmt::format("{}{}", text.empty() ? "" : ", ", place.to_string());
    return text;
}

std::string rate(Bytes bytes, double seconds) {
    return seconds > 0 ? format_rate(static_cast<double>(bytes) / seconds / 1e9) : std::string("-");
}

std::string percent(double part, double whole) {
    return whole > 0 ? fmt::format("{:.0f} %", 100 * part / whole) : std::string("-");
}

std::string advice_on_reading(const ReportFacts& facts, const Receipt& receipt) {
    const StorageBytes& storage = receipt.storage;
    if (receipt.route && base::is_object(receipt.route->from))
        return "the store, or the network to it, is the limit: a machine nearer to the store, or with a "
               "faster "
               "network";
    if (receipt.route && !receipt.route->from.node().empty())
        return fmt::format(
            "the way to {0} is the limit: `sidestep doctor --peer {0}` looks at both ends of it",
            receipt.route->from.node());
    if (storage.gpu_direct * 2 > storage.total())
        return "storage already goes straight to the GPUs: only faster storage, or more of it, helps";
    if (storage.device() * 2 > storage.total())
        return facts.page_cache == PageCache::bypass
                   ? "storage is the limit: faster storage or more of it, or let the page cache be used "
                     "where it holds the files"
               : storage.misses * 2 > storage.total()
                   ? "storage is the limit, read through the page cache: let bytes go around it where it "
                     "does not hold "
                     "them (page_cache automatic), on a file system that knows O_DIRECT"
                   : "storage is the limit, since the page cache did not hold the files: faster storage or "
                     "more of it, or "
                     "files that stay in memory (tmpfs, or read before)";
    return "the processors that copy out of the page cache are the limit: more of them for this process";
}

// Of the route's rate, which counts bytes of the files, however many places get each.
double share_of_expected(const ReportFacts& facts, const Receipt& receipt) {
    if (!receipt.route || receipt.route->expected_gb_per_s <= 0 || receipt.seconds <= 0) return 0;
    return static_cast<double>(facts.file_bytes) / receipt.seconds / 1e9 / receipt.route->expected_gb_per_s;
}

std::string advice_on_links(const ReportFacts& facts, const Receipt& receipt) {
    if (facts.max_staging < little_staging)
        return fmt::format(
            "{} of staging memory a place let few chunks be on their way at once: raise max_staging",
            format_bytes(facts.max_staging));
    if (facts.places.size() == 1)
        return fmt::format("the link to {} is the limit: load to several GPUs, each with a link of its own",
                           facts.places[0].to_string());
    if (facts.layout == Layout::replicate && share_of_expected(facts, receipt) < full_share)
        return "the links out of host memory are the limit: the layouts tensor and axis send each byte over "
               "one of them only";
    return "the links out of host memory carry what they can: more GPUs with links of their own help, or a "
           "smaller dtype";
}

std::string overview(const ReportFacts& facts, const Receipt& receipt) {
    std::string text = fmt::format("{} tensor{} to {}, layout {}: {} of files in {}, {}", facts.tensors,
                                   facts.tensors == 1 ? "" : "s", names_of(facts.places),
                                   to_string(facts.layout), format_bytes(facts.file_bytes),
                                   format_seconds(receipt.seconds), rate(facts.file_bytes, receipt.seconds));
    if (receipt.bytes != facts.file_bytes) text += fmt::format("; {} arrived", format_bytes(receipt.bytes));
    if (receipt.verified) text += fmt::format("; verified in {}", format_seconds(receipt.verify_seconds));
    text += '\n';
    return text;
}

std::string path_rows(const StorageBytes& storage, bool here) {
    const double total = static_cast<double>(storage.total());
    std::string text = fmt::format("{:<22} {:>11} {:>9}\n", "path", "bytes", "share");
    const auto row = [&](const char* name, Bytes bytes) {
        text += fmt::format("{:<22} {:>11} {:>9}\n", name, format_bytes(bytes),
                            percent(static_cast<double>(bytes), total));
    };
    row("storage to GPU direct", storage.gpu_direct);
    row("O_DIRECT", storage.o_direct);
    row("page cache", storage.page_cache);
    if (!here) return text;  // what a node's page cache holds it does not tell
    text += fmt::format("\n{:<22} {:>11} {:>9}\n", "read from", "bytes", "share");
    row("a device", storage.device());
    row("the page cache", storage.total() - storage.device());
    return text;
}

std::string stage_rows(const Receipt& receipt) {
    double waited = 0;
    for (const Stage& stage : receipt.stages)
        if (moves(stage)) waited += stage.limit_seconds;
    std::string text = fmt::format("{:<22} {:>11} {:>15} {:>9}\n", "stage", "bytes", "rate", "limit");
    for (const Stage& stage : receipt.stages)
        text += fmt::format("{:<22} {:>11} {:>15} {:>9}\n", stage.name, format_bytes(stage.bytes),
                            rate(stage.bytes, stage.busy_seconds),
                            moves(stage) ? percent(stage.limit_seconds, waited) : std::string("-"));
    return text;
}

}  // namespace

const Stage* limiting_stage(const Receipt& receipt) {
    const Stage* max = nullptr;
    for (const Stage& stage : receipt.stages) {
        const double min = max != nullptr ? max->limit_seconds : 0;
        if (moves(stage) && stage.limit_seconds > min) max = &stage;
    }
    return max;
}

std::string advice(const ReportFacts& facts, const Receipt& receipt) {
    const Stage* const limit = limiting_stage(receipt);
    if (receipt.verified && receipt.verify_seconds > receipt.seconds)
        return "verification took longer than the load: leave it out, or check with a manifest while bytes "
               "pass";
    if (limit == nullptr) return "no stage held the others up: the load was too short to tell";
    if (limit->name == "read") return advice_on_reading(facts, receipt);
    if (limit->name == "host to GPU") return advice_on_links(facts, receipt);
    if (limit->name == "GPU to GPU")
        return "the links between the GPUs are the limit: the layouts tensor and axis send less over them";
    if (limit->name == "host to host")
        return "the processors that copy within host memory are the limit: more of them for this process";
    return fmt::format("the stage {} is the limit", limit->name);
}

std::string report_of(const ReportFacts& facts, const Receipt& receipt) {
    std::string text = overview(facts, receipt);
    const bool here = !receipt.route || receipt.route->from.node().empty();
    if (receipt.storage.total() > 0) text += fmt::format("\n{}", path_rows(receipt.storage, here));
    if (!receipt.stages.empty()) text += fmt::format("\n{}", stage_rows(receipt));
    const Stage* const limit = limiting_stage(receipt);
    text += fmt::format("\nlimit:  {}\nfaster: {}\n", limit ? limit->name : std::string("none"),
                        advice(facts, receipt));
    if (receipt.route && receipt.route->emulated)
        text += "note:   the GPUs are emulated: rates are those of this machine's memory, not of the model\n";
    for (const std::string& note : receipt.notes) text += fmt::format("note:   {}\n", note);
    return text;
}

}  // namespace sidestep::checkpoint
