// A checkpoint to one GPU and to all of them, and back to a file, beside plain threads that only read or
// write it.
#include <fcntl.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"
#include "bench/case.hpp"
#include "bench/leftovers.hpp"
#include "bench/raw_cuda_file.hpp"
#include "bench/raw_file.hpp"

namespace sidestep::bench {
namespace {

// Shapes of a model: large matrices, and between them vectors that fill no page.
constexpr std::size_t matrices = 32;
constexpr Bytes vector_bytes = 8192 + 2;

// Tensors in painted host memory, and the file that they are saved to; removed at the end.
class Sample {
public:
    static Result<Sample> make(const Context& context, const std::filesystem::path& folder, Bytes bytes) {
        Sample sample;
        SIDESTEP_TRY(auto memory, context.allocate(Place::host(), bytes));
        sample.memory_ = std::move(memory);
        SIDESTEP_CHECK(paint(context, sample.memory_.buffer(), 1));
        sample.cut();
        sample.file_.emplace((folder / fmt::format("sidestep-bench-{}.safetensors", getpid())).string());
        SaveOptions how;
        how.sync_file = true;  // so that no write-back runs beside what is measured
        SIDESTEP_CHECK(context.save(sample.tensors_, sample.path(), how).wait());
        return sample;
    }

    const std::string& path() const { return file_->path(); }
    Bytes bytes() const { return memory_.size(); }
    const std::vector<TensorToSave>& tensors() const { return tensors_; }

    // Takes the file out of the page cache.
    void forget() const {
        const int file = ::open(path().c_str(), O_RDONLY | O_CLOEXEC);
        if (file < 0) return;
        posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
        ::close(file);
    }

    // Reads every tensor at every place back, and compares it with the memory it was saved from.
    Result<void> check(const Context& context, const Loaded& loaded) const {
        for (const Place& place : loaded.places())
            for (const LoadedTensor& tensor : loaded.tensors(place)) {
                const auto origin =
                    std::find_if(tensors_.begin(), tensors_.end(),
                                 [&](const TensorToSave& one) { return one.name == tensor.name; });
                if (origin == tensors_.end() || origin->data.size() != tensor.buffer.size())
                    return Error{
                        ErrorCode::mismatch, "a tensor has another size", std::string(tensor.name), {}};
                SIDESTEP_TRY(auto back, context.allocate(Place::host(), tensor.buffer.size()));
                SIDESTEP_CHECK(context.copy(tensor.buffer, back.buffer()).wait());
                if (std::memcmp(back.address(), origin->data.address(), back.size()) != 0)
                    return Error{
                        ErrorCode::mismatch, "a tensor has other bytes", std::string(tensor.name), {}};
            }
        return {};
    }

private:
    Sample() = default;

    void cut() {
        const Bytes total = memory_.size();
        const Bytes small = std::min(vector_bytes, total / (2 * matrices) / 2 * 2);
        Bytes at = 0;
        const auto add = [&](std::string name, Bytes bytes) {
            tensors_.push_back({std::move(name), Dtype::u8, {bytes}, memory_.buffer().slice(at, bytes)});
            at += bytes;
        };
        const Bytes large_one = (total - matrices * small) / matrices;
        for (std::size_t i = 0; i < matrices; ++i) {
            add(fmt::format("layers.{}.norm", i), small);
            add(fmt::format("layers.{}.weight", i), i + 1 < matrices ? large_one : total - at);
        }
    }

    Allocation memory_;
    std::vector<TensorToSave> tensors_;
    std::optional<ScratchFile> file_;
};

struct CheckpointSetting {
    const Context& context;
    const Options& options;
    const Sample& sample;
    char* scratch;      // host memory of the same size for the plain threads
    std::string where;  // "", or "tmpfs"
};

std::string places_of(const std::vector<Place>& places) {
    return places.size() == 1 ? places[0].to_string() : fmt::format("{} GPUs", places.size());
}

// What the host links of all places carry together; 0 where one is not known.
double sum_of_links(const Context& context, const std::vector<Place>& places) {
    double sum = 0;
    for (const Place& place : places) {
        const Figure link = link_figure(context, Place::host(), place, 1_GiB);
        if (link.limit <= 0) return 0;
        sum += link.limit;
    }
    return sum;
}

constexpr long tmpfs_magic = 0x01021994;  // TMPFS_MAGIC of linux/magic.h

bool lives_in_memory(const std::string& folder) {
    struct statfs found = {};
    return statfs(folder.c_str(), &found) == 0 && found.f_type == tmpfs_magic;
}

// Moving the same bytes between the file and real GPUs by plain threads and cuMemcpyAsync, each byte to or from one GPU; none where
// GPUs are emulated.
Result<std::vector<Yardstick>> staged_threads(const CheckpointSetting& setting, const std::string& path,
                                              const std::vector<Place>& places, bool write) {
    std::vector<Yardstick> none;
    if (!no_raw_cuda(setting.context).empty()) return none;
    raw::StagedLoop loop{path, setting.sample.bytes(), {}, 1, write, false};
    loop.mapped = write && lives_in_memory(std::filesystem::path(path).parent_path());
    for (const Place& place : places) loop.gpus.push_back(place.index());
    auto threads = raw::StagedThreads::best(loop);
    if (!threads) return threads.error();
    const auto kept = std::make_shared<raw::StagedThreads>(std::move(*threads));
    const char* how = !write        ? "pread and cuMemcpyAsync"
                      : loop.mapped ? "cuMemcpyAsync and a copy into a map"
                                    : "cuMemcpyAsync and pwrite";
    return std::vector<Yardstick>{{fmt::format("{}, {} threads (the best count)", how, kept->threads()),
                                   [kept] { return kept->seconds(); }}};
}

// Reading or writing the same bytes by plain threads, as many as are best.
// Those that write make a file of their own.
Result<std::vector<Yardstick>> plain_threads(const CheckpointSetting& setting, const std::string& path,
                                             bool write, bool direct) {
    return thread_yardsticks({path, setting.sample.bytes() / 4096 * 4096, write, direct, 1, write},
                             setting.scratch, write ? "pwrite from memory" : "pread into memory");
}

// What a load or a save is compared with in the same run. Bytes on a disk are limited by it, whatever else they pass.
Result<std::vector<Yardstick>> yardsticks_for(const CheckpointSetting& setting, const std::string& path,
                                              const std::vector<Place>& places, bool write, bool disk) {
    auto found = disk ? Result<std::vector<Yardstick>>(std::vector<Yardstick>{})
                      : staged_threads(setting, path, places, write);
    if (!found) return found;
    auto plain = plain_threads(setting, path, write, disk);
    if (!plain) return plain;
    found->insert(found->end(), plain->begin(), plain->end());
    return found;
}

Figure blank_figure(const CheckpointSetting& setting, std::string what) {
    Figure figure;
    figure.what = std::move(what);
    if (!setting.where.empty()) figure.what += ", " + setting.where;
    figure.bytes = setting.sample.bytes();
    figure.unit = "GB/s";
    return figure;
}

// The driver clears memory that is freed, here that of the load before, and meanwhile copies to the GPU are
// slower: a warm load of 8 GiB right behind it reached 47.6 GB/s on an H200, and 52.0 to 52.9 later or beside
// it. The loaders of PyTorch keep theirs.
constexpr std::chrono::milliseconds until_cleared{200};

Result<Figure> load_figure(const CheckpointSetting& setting, const std::vector<Place>& places, Layout layout,
                           bool cold) {
    const char* how = layout == Layout::replicate ? "the whole on each" : "a share on each";
    Figure blank = blank_figure(
        setting, fmt::format("file -> {}{}, {}", places_of(places),
                             places.size() == 1 ? "" : fmt::format(", {}", how), cold ? "cold" : "warm"));
    blank.from = "file";
    if (places.size() == 1) blank.to = places[0].to_string();
    if (!cold && (blank.limit = sum_of_links(setting.context, places)) > 0)
        blank.limit_source = "host links of these GPUs";
    SIDESTEP_TRY(auto yardsticks, yardsticks_for(setting, setting.sample.path(), places, false, cold));
    SIDESTEP_TRY(auto checkpoint, Checkpoint::open(setting.sample.path()));
    LoadOptions options;
    options.to = places;
    options.layout = layout;
    std::string path;
    const auto load = [&]() -> Result<double> {
        if (cold) setting.sample.forget();
        std::this_thread::sleep_for(until_cleared);
        Result<Loaded> loaded = Error{ErrorCode::internal, "not run", {}, {}};
        const double seconds = seconds_of([&] { loaded = setting.context.load(checkpoint, options).wait(); });
        if (!loaded) return loaded.error();
        const Receipt& receipt = loaded->receipt();
        path = fmt::format("{}; {} around the page cache, {} from it", words_of(receipt),
                           format_bytes(receipt.storage.o_direct), format_bytes(receipt.storage.page_cache));
        return seconds;
    };
    auto figure = measure_rate(std::move(blank), setting.options, load, yardsticks);
    if (!figure) return figure;
    figure->path = path;
    if (!setting.options.verify) return figure;
    SIDESTEP_TRY(auto again, setting.context.load(checkpoint, options).wait());
    SIDESTEP_CHECK(setting.sample.check(setting.context, again));
    figure->verified = true;
    return figure;
}

// From the call until bytes have arrived, as a program sees them with Loading::bytes_done.
Result<Figure> first_bytes_figure(const CheckpointSetting& setting, const Place& place) {
    SIDESTEP_TRY(auto checkpoint, Checkpoint::open(setting.sample.path()));
    LoadOptions options;
    options.to = {place};
    Figure figure = blank_figure(setting, fmt::format("file -> {}, first bytes", place.to_string()));
    figure.from = "file";
    figure.to = place.to_string();
    figure.bytes = 0;
    figure.unit = "us";
    figure.more_is_better = false;
    for (int sample = -1; sample < setting.options.samples; ++sample) {  // one to warm up
        const auto start = std::chrono::steady_clock::now();
        Loading loading = setting.context.load(checkpoint, options);
        std::optional<Result<Loaded>> ended;
        while (loading.bytes_done() == 0 && !ended) ended = loading.wait_for(std::chrono::milliseconds(1));
        const std::chrono::duration<double, std::micro> passed = std::chrono::steady_clock::now() - start;
        if (!ended) ended = loading.wait();
        if (!*ended) return ended->error();
        if (sample >= 0) figure.measured.values.push_back(passed.count());
    }
    return figure;
}

// Tensors on one GPU to a new file beside the sample's. Not over the one before: to remove that would be on
// the clock, and may take longer than to write it (docs/load.md).
Result<Figure> save_figure(const CheckpointSetting& setting, const Place& place, bool flushed) {
    SIDESTEP_TRY(auto checkpoint, Checkpoint::open(setting.sample.path()));
    LoadOptions there;
    there.to = {place};
    SIDESTEP_TRY(auto loaded, setting.context.load(checkpoint, there).wait());
    std::vector<TensorToSave> tensors;
    for (const LoadedTensor& tensor : loaded.tensors(place))
        tensors.push_back({std::string(tensor.name), tensor.dtype, tensor.shape, tensor.buffer});
    const ScratchFile file(setting.sample.path() + ".saved");
    const std::string& target = file.path();
    SaveOptions how;
    how.sync_file = flushed;
    std::string path;
    const auto save = [&]() -> Result<double> {
        ::unlink(target.c_str());
        Result<Receipt> saved = Error{ErrorCode::internal, "not run", {}, {}};
        const double seconds = seconds_of([&] { saved = setting.context.save(tensors, target, how).wait(); });
        if (!saved) return saved.error();
        path = words_of(*saved);
        return seconds;
    };
    Figure blank =
        blank_figure(setting, fmt::format("{} -> file{}", place.to_string(), flushed ? ", flushed" : ""));
    blank.from = place.to_string();
    blank.to = "file";
    const ScratchFile plain(target + ".plain");
    auto yardsticks = yardsticks_for(setting, plain.path(), {place}, true, flushed);
    Result<Figure> figure = yardsticks ? measure_rate(std::move(blank), setting.options, save, *yardsticks)
                                       : Result<Figure>(yardsticks.error());
    if (figure && setting.options.verify) {
        auto last = save();
        auto written = last ? Checkpoint::open(target) : Result<Checkpoint>(last.error());
        auto back = written ? setting.context.load(*written, there).wait() : Result<Loaded>(written.error());
        if (!back) {
            figure = back.error();
        } else if (auto same = setting.sample.check(setting.context, *back); !same) {
            figure = same.error();
        } else {
            figure->verified = true;
        }
    }
    if (figure) figure->path = path;
    return figure;
}

Result<void> add_figures(const CheckpointSetting& setting, const std::vector<Place>& gpus, bool disk,
                         std::vector<Figure>& figures) {
    const std::vector<Place> one = {gpus[0]};
    const auto add = [&](Result<Figure> figure) -> Result<void> {
        if (!figure) return figure.error();
        figures.push_back(std::move(*figure));
        return {};
    };
    for (const bool cold : {false, true}) {
        if (cold && !disk) continue;
        SIDESTEP_CHECK(add(load_figure(setting, one, Layout::replicate, cold)));
        if (gpus.size() == 1) continue;
        for (const Layout layout : {Layout::replicate, Layout::by_tensor})
            SIDESTEP_CHECK(add(load_figure(setting, gpus, layout, cold)));
    }
    SIDESTEP_CHECK(add(first_bytes_figure(setting, one[0])));
    return add(save_figure(setting, one[0], disk));
}

Result<std::vector<Figure>> run_checkpoint(const Context& context, const Options& options) {
    std::vector<Place> gpus;
    for (const int gpu : gpus_of(context, options)) gpus.push_back(Place::gpu(gpu));
    if (gpus.size() > 4 && context.topology().emulated()) gpus.resize(4);
    SIDESTEP_TRY(const auto folder, scratch_folder(options));
    std::vector<std::filesystem::path> folders = {folder};
    std::error_code error;
    const std::filesystem::path shared = "/dev/shm";
    if (options.folder.empty() && !lives_in_memory(folder) && std::filesystem::is_directory(shared, error))
        folders.push_back(shared);
    std::vector<Figure> figures;
    for (const Bytes bytes : options.sizes_or({context.topology().emulated() ? 256_MiB : 8_GiB})) {
        SIDESTEP_TRY(auto scratch, context.allocate(Place::host(), bytes));
        SIDESTEP_CHECK(paint(context, scratch.buffer(), 1));
        for (const std::filesystem::path& place : folders) {
            const bool disk = !lives_in_memory(place);
            SIDESTEP_TRY(auto sample, Sample::make(context, place, bytes));
            const CheckpointSetting setting{context, options, sample, static_cast<char*>(scratch.address()),
                                            disk ? "" : "tmpfs"};
            SIDESTEP_CHECK(add_figures(setting, gpus, disk, figures));
        }
    }
    return figures;
}

}  // namespace

std::vector<Case> checkpoint_cases() {
    return {{"checkpoint",
             "A checkpoint from a file to one GPU and to all, cold and warm, and back to a file", no_gpu,
             run_checkpoint}};
}

}  // namespace sidestep::bench
