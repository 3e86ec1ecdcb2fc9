// Files to and from host memory and a GPU, through the page cache and around it, beside plain threads.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "bench/case.hpp"
#include "bench/leftovers.hpp"
#include "bench/raw_file.hpp"

namespace sidestep::bench {
namespace {

Result<ScratchFile> painted_file(const Context& context, const Options& options, const Buffer& painted) {
    const auto folder = scratch_folder(options);
    if (!folder) return folder.error();
    ScratchFile file((*folder / fmt::format("sidestep-bench-{}", getpid())).string());
    // Flushed, so that no write-back of old pages runs beside what is measured.
    CopyOptions how;
    how.sync_file = true;
    if (auto written = context.copy(painted, Buffer::file(file.path()), how).wait(); !written)
        return written.error();
    return file;
}

// What all figures of one size share.
struct FileSetting {
    const Context& context;
    const Options& options;
    Bytes bytes;
    const ScratchFile& file;  // painted with seed 1
    char* scratch;            // host memory for the plain loop, painted the same
};

// Whether plain threads can do it too, and how many do it best; no yardstick where O_DIRECT is refused.
Result<std::vector<Yardstick>> plain_threads(const FileSetting& setting, bool write, bool direct) {
    raw::FileLoop loop{setting.file.path(), setting.bytes, write, direct, 1};
    const auto threads = raw::best_file_threads(loop, setting.scratch);
    if (!threads && threads.error().code == ErrorCode::unsupported) return std::vector<Yardstick>{};
    if (!threads) return threads.error();
    loop.threads = *threads;
    return std::vector<Yardstick>{
        {fmt::format("{}, {} threads (the best count)", write ? "pwrite" : "pread", *threads),
         [loop, memory = setting.scratch] { return raw::file_seconds(loop, memory); }}};
}

std::string direct_words(bool direct) {
    return direct ? "O_DIRECT" : "page cache";
}

Result<Figure> read_figure(const FileSetting& setting, const Place& to, bool direct) {
    auto target = setting.context.allocate(to, setting.bytes);
    if (!target) return target.error();
    if (auto painted = paint(setting.context, target->buffer(), 2); !painted) return painted.error();
    auto yardstick = plain_threads(setting, false, direct);
    if (!yardstick) return yardstick.error();
    Figure blank;
    blank.what = fmt::format("file -> {}, {}", to.to_string(), direct_words(direct));
    blank.from = "file";
    blank.to = to.to_string();
    blank.bytes = setting.bytes;
    blank.unit = "GB/s";
    CopyOptions how;
    how.page_cache = direct ? PageCache::bypass : PageCache::use;
    std::string path;
    auto figure = measure_rate(
        std::move(blank), setting.options,
        [&] {
            return timed_copy(setting.context, Buffer::file(setting.file.path()), target->buffer(), how,
                              &path);
        },
        *yardstick);
    if (!figure) return figure;
    figure->path = path;
    if (!setting.options.verify) return figure;
    if (auto same = check_painted(setting.context, target->buffer(), 1); !same) return same.error();
    figure->verified = true;
    return figure;
}

// What a file holds, compared with what `seed` paints.
Result<void> check_file(const FileSetting& setting, unsigned seed) {
    auto read = setting.context.allocate(Place::host(), setting.bytes);
    if (!read) return read.error();
    if (auto done = setting.context.copy(Buffer::file(setting.file.path()), read->buffer()).wait(); !done)
        return done.error();
    return check_painted(setting.context, read->buffer(), seed);
}

// Into a range of the file, so that no file is made and replaced each time.
Result<Figure> write_figure(const FileSetting& setting, const Place& from, bool direct) {
    constexpr unsigned seed = 3;  // the plain threads write what the file holds already
    auto source = setting.context.allocate(from, setting.bytes);
    if (!source) return source.error();
    if (auto painted = paint(setting.context, source->buffer(), seed); !painted) return painted.error();
    auto yardstick = plain_threads(setting, true, direct);
    if (!yardstick) return yardstick.error();
    Figure blank;
    blank.what = fmt::format("{} -> file, {}", from.to_string(), direct_words(direct));
    blank.from = from.to_string();
    blank.to = "file";
    blank.bytes = setting.bytes;
    blank.unit = "GB/s";
    CopyOptions how;
    how.page_cache = direct ? PageCache::bypass : PageCache::use;
    const Buffer range = Buffer::file(setting.file.path(), 0, setting.bytes);
    std::string path;
    const auto once = [&] { return timed_copy(setting.context, source->buffer(), range, how, &path); };
    auto figure = measure_rate(std::move(blank), setting.options, once, *yardstick);
    if (!figure) return figure;
    figure->path = path;
    if (!setting.options.verify) return figure;
    // The plain threads wrote last.
    if (auto again = once(); !again) return again.error();
    if (auto same = check_file(setting, seed); !same) return same.error();
    figure->verified = true;
    return figure;
}

Result<void> add_figures(const FileSetting& setting, const std::vector<Place>& ends,
                         std::vector<Figure>& figures) {
    const Place file = Place::file(setting.file.path());
    for (const bool write : {false, true})
        for (const Place& end : ends)
            for (const bool direct : {false, true}) {
                if (!setting.options.wants(write ? end : file, write ? file : end)) continue;
                auto figure = write ? write_figure(setting, end, direct) : read_figure(setting, end, direct);
                if (!figure) return figure.error();
                figures.push_back(std::move(*figure));
            }
    return {};
}

Result<std::vector<Figure>> run_files(const Context& context, const Options& options) {
    std::vector<Place> ends = {Place::host()};
    if (no_gpu(context).empty())
        for (const int gpu : gpus_of(context, options))
            if (ends.size() < 2) ends.push_back(Place::gpu(gpu));
    std::vector<Figure> figures;
    for (Bytes bytes : options.sizes_or({std::min<Bytes>(large(context), 512_MiB)})) {
        bytes = std::max<Bytes>(bytes / 4096, 1) * 4096;  // what O_DIRECT takes
        auto painted = context.allocate(Place::host(), bytes);
        if (!painted) return painted.error();
        auto scratch = context.allocate(Place::host(), bytes);
        if (!scratch) return scratch.error();
        for (const Buffer& memory : {painted->buffer(), scratch->buffer()})
            if (auto done = paint(context, memory, 1); !done) return done.error();
        auto file = painted_file(context, options, painted->buffer());
        if (!file) return file.error();
        const FileSetting setting{context, options, bytes, *file, static_cast<char*>(scratch->address())};
        if (auto added = add_figures(setting, ends, figures); !added) return added.error();
    }
    return figures;
}

}  // namespace

std::vector<Case> file_cases() {
    return {{"file", "A file and host memory or a GPU, each way, through the page cache and around it",
             nothing_missing, run_files}};
}

}  // namespace sidestep::bench
