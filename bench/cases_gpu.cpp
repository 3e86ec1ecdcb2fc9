// Copies with a GPU at one end or both, beside what the driver does by itself.
#include <cstring>
#include <filesystem>
#include <fstream>

#include "bench/case.hpp"
#include "bench/raw_cuda.hpp"

namespace sidestep::bench {
namespace {

std::string no_gpu(const Context& context) {
    if (context.topology().gpu_count() == 0) return "this machine has no GPU";
    for (const BackendStatus& status : context.backends())
        if (status.name == "cuda" && !status.usable) return status.reason;
    const auto raw = raw::available();
    return raw ? "" : raw.error().to_string();
}

std::string fewer_than_two_gpus(const Context& context) {
    const std::string missing = no_gpu(context);
    if (!missing.empty()) return missing;
    return context.topology().gpu_count() < 2 ? "this machine has one GPU" : "";
}

Samples samples_of(const raw::Rate& rate) { return {{rate.least, rate.gb_per_s, rate.most}}; }

int number_of(const Place& place) { return place.is_gpu() ? place.index() : raw::host; }

// One pair of places: the library's whole copies beside the driver's back-to-back ones.
Result<Figure> pair_figure(const Context& context, const Place& from, const Place& to, const Options& options,
                           const CopyOptions& how, const char* suffix) {
    const Bytes bytes = options.smoke ? 1_MiB : options.bytes;
    auto source = context.allocate(from, bytes);
    if (!source) return source.error();
    auto target = context.allocate(to, bytes);
    if (!target) return target.error();
    auto figure = rate_figure(from.to_string() + " -> " + to.to_string() + ", " + format_bytes(bytes) + suffix,
                              bytes, options,
                              [&] { return timed_copy(context, source->buffer(), target->buffer(), how); }, "", {});
    if (!figure) return figure.error();
    const auto rate = raw::copy_rate(number_of(from), number_of(to), bytes, options.samples);
    if (!rate) return rate.error();
    figure->peer = samples_of(*rate);
    figure->peer_name = "driver's copy engine, 16 in a row";
    return figure;
}

Result<std::vector<Figure>> run_host_link(const Context& context, const Options& options) {
    std::vector<Figure> figures;
    for (int gpu = 0; gpu < context.topology().gpu_count(); ++gpu)
        for (const bool up : {true, false}) {
            const Place device = Place::gpu(gpu), host = Place::host();
            auto figure = pair_figure(context, up ? host : device, up ? device : host, options, {}, "");
            if (!figure) return figure.error();
            figures.push_back(std::move(*figure));
        }
    return figures;
}

Result<std::vector<Figure>> run_pairs(const Context& context, const Options& options, const CopyOptions& how,
                                      const char* suffix) {
    std::vector<Figure> figures;
    const int count = context.topology().gpu_count();
    for (int from = 0; from < count; ++from)
        for (int to = 0; to < count; ++to) {
            if (from == to) continue;
            auto figure = pair_figure(context, Place::gpu(from), Place::gpu(to), options, how, suffix);
            if (!figure) return figure.error();
            figures.push_back(std::move(*figure));
        }
    return figures;
}

Result<std::vector<Figure>> run_peer_engine(const Context& context, const Options& options) {
    return run_pairs(context, options, {}, "");
}

Result<std::vector<Figure>> run_peer_kernel(const Context& context, const Options& options) {
    CopyOptions how;
    how.prefer = Prefer::kernel;
    return run_pairs(context, options, how, ", kernel");
}

// Microseconds the caller spends to submit one copy, and until it is seen to have ended.
Result<std::vector<Figure>> run_submit(const Context& context, const Options& options) {
    constexpr Bytes bytes = 4096;
    const int batch = options.smoke ? 10 : 2000;
    auto source = context.allocate(Place::host(), bytes);
    if (!source) return source.error();
    auto target = context.allocate(Place::gpu(0), bytes);
    if (!target) return target.error();
    Figure submit{"host -> gpu:0, 4 KiB, submission", "us", {}, {}, "bare cuMemcpyAsync"};
    Figure whole{"host -> gpu:0, 4 KiB, until seen done", "us", {}, {}, "bare call and query"};
    for (int round = -1; round < options.samples; ++round) {
        Samples submits, wholes;
        for (int i = 0; i < batch; ++i) {
            std::optional<Transfer> transfer;
            const double submitted = seconds_of([&] { transfer.emplace(context.copy(source->buffer(), target->buffer())); });
            bool good = false;
            const double waited = seconds_of([&] { good = transfer->wait().ok(); });
            if (!good) return Error{ErrorCode::device_error, "a 4 KiB copy failed", "bench", {}};
            submits.values.push_back(submitted * 1e6);
            wholes.values.push_back((submitted + waited) * 1e6);
        }
        const auto cost = raw::copy_cost(raw::host, 0, bytes, batch);
        if (!cost) return cost.error();
        if (round < 0) continue;
        submit.measured.values.push_back(submits.median());
        submit.peer.values.push_back(cost->submit_us);
        whole.measured.values.push_back(wholes.median());
        whole.peer.values.push_back(cost->complete_us);
    }
    return std::vector<Figure>{std::move(submit), std::move(whole)};
}

// Memory the copy engine cannot reach, and files: staged through a pinned ring.
Result<std::vector<Figure>> run_staged(const Context& context, const Options& options) {
    const Bytes bytes = options.smoke ? 4_MiB : options.bytes;
    auto pageable = context.allocate(Place::host(), bytes, MemoryKind::pageable);
    if (!pageable) return pageable.error();
    std::memset(pageable->address(), 5, bytes);
    auto target = context.allocate(Place::gpu(0), bytes);
    if (!target) return target.error();
    const std::string path = (std::filesystem::temp_directory_path() / "sidestep-bench-file").string();
    std::ofstream(path, std::ios::binary)
        .write(static_cast<const char*>(pageable->address()), static_cast<std::streamsize>(bytes));
    struct End {
        const char* what;
        Buffer from, to;
    };
    const End ends[] = {{"pageable host -> gpu:0", pageable->buffer(), target->buffer()},
                        {"gpu:0 -> pageable host", target->buffer(), pageable->buffer()},
                        {"file in the page cache -> gpu:0", Buffer::file(path), target->buffer()}};
    std::vector<Figure> figures;
    for (const End& end : ends) {
        auto figure = rate_figure(std::string(end.what) + ", " + format_bytes(bytes), bytes, options,
                                  [&] { return timed_copy(context, end.from, end.to); }, "", {});
        if (!figure) return figure.error();
        figures.push_back(std::move(*figure));
    }
    std::filesystem::remove(path);
    return figures;
}

}  // namespace

std::vector<Case> gpu_cases() {
    return {{"host_link", "Pinned host memory and each GPU, both ways", no_gpu, run_host_link},
            {"peer_engine", "Every pair of GPUs, copy engine", fewer_than_two_gpus, run_peer_engine},
            {"peer_kernel", "Every pair of GPUs, load/store kernel", fewer_than_two_gpus, run_peer_kernel},
            {"gpu_submit", "What a small GPU copy costs the caller", no_gpu, run_submit},
            {"gpu_staged", "Pageable memory and files to a GPU", no_gpu, run_staged}};
}

}  // namespace sidestep::bench
