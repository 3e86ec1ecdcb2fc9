// Files to and from host memory and a GPU, through the page cache and around it, beside plain threads.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"
#include "bench/case.hpp"
#include "bench/leftovers.hpp"

namespace sidestep::bench {
namespace {

Result<ScratchFile> painted_file(const Context& context, const Options& options, const Buffer& painted) {
    SIDESTEP_TRY(const auto folder, scratch_folder(options));
    ScratchFile file((folder / fmt::format("sidestep-bench-{}", getpid())).string());
    // Flushed, so that no write-back of old pages runs beside what is measured.
    CopyOptions how;
    how.sync_file = true;
    SIDESTEP_CHECK(context.copy(painted, Buffer::file(file.path()), how).wait());
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

Result<std::vector<Yardstick>> plain_threads(const FileSetting& setting, bool write, bool direct) {
    return thread_yardsticks({setting.file.path(), setting.bytes, write, direct, 1}, setting.scratch,
                             write ? "pwrite" : "pread");
}

std::string direct_words(bool direct) {
    return direct ? "O_DIRECT" : "page cache";
}

Result<Figure> read_figure(const FileSetting& setting, const Place& to, bool direct) {
    SIDESTEP_TRY(auto target, setting.context.allocate(to, setting.bytes));
    SIDESTEP_CHECK(paint(setting.context, target.buffer(), 2));
    SIDESTEP_TRY(auto yardstick, plain_threads(setting, false, direct));
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
            return timed_copy(setting.context, Buffer::file(setting.file.path()), target.buffer(), how,
                              &path);
        },
        yardstick);
    if (!figure) return figure;
    figure->path = path;
    if (!setting.options.verify) return figure;
    SIDESTEP_CHECK(check_painted(setting.context, target.buffer(), 1));
    figure->verified = true;
    return figure;
}

// What a file holds, compared with what `seed` paints.
Result<void> check_file(const FileSetting& setting, unsigned seed) {
    SIDESTEP_TRY(auto read, setting.context.allocate(Place::host(), setting.bytes));
    SIDESTEP_CHECK(setting.context.copy(Buffer::file(setting.file.path()), read.buffer()).wait());
    return check_painted(setting.context, read.buffer(), seed);
}

// Into a range of the file, so that no file is made and replaced each time.
Result<Figure> write_figure(const FileSetting& setting, const Place& from, bool direct) {
    constexpr unsigned seed = 3;  // the plain threads write what the file holds already
    SIDESTEP_TRY(auto source, setting.context.allocate(from, setting.bytes));
    SIDESTEP_CHECK(paint(setting.context, source.buffer(), seed));
    SIDESTEP_TRY(auto yardstick, plain_threads(setting, true, direct));
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
    const auto once = [&] { return timed_copy(setting.context, source.buffer(), range, how, &path); };
    auto figure = measure_rate(std::move(blank), setting.options, once, yardstick);
    if (!figure) return figure;
    figure->path = path;
    if (!setting.options.verify) return figure;
    // The plain threads wrote last.
    SIDESTEP_CHECK(once());
    SIDESTEP_CHECK(check_file(setting, seed));
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
                SIDESTEP_TRY(auto figure,
                             write ? write_figure(setting, end, direct) : read_figure(setting, end, direct));
                figures.push_back(std::move(figure));
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
        SIDESTEP_TRY(auto painted, context.allocate(Place::host(), bytes));
        SIDESTEP_TRY(auto scratch, context.allocate(Place::host(), bytes));
        for (const Buffer& memory : {painted.buffer(), scratch.buffer()})
            SIDESTEP_CHECK(paint(context, memory, 1));
        SIDESTEP_TRY(auto file, painted_file(context, options, painted.buffer()));
        const FileSetting setting{context, options, bytes, file, static_cast<char*>(scratch.address())};
        SIDESTEP_CHECK(add_figures(setting, ends, figures));
    }
    return figures;
}

}  // namespace

std::vector<Case> file_cases() {
    return {{"file", "A file and host memory or a GPU, each way, through the page cache and around it",
             nothing_missing, run_files}};
}

}  // namespace sidestep::bench
