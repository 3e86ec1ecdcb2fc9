// Memory of another process: `sidestep publish`, started as a child, owns it.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include <fmt/format.h>

#include "base/try.hpp"
#include "bench/case.hpp"
#include "bench/leftovers.hpp"
#include "bench/raw_cuda.hpp"
#include "bench/raw_cuda_ipc.hpp"

extern char** environ;

namespace sidestep::bench {
namespace {

constexpr const char* self = "/proc/self/exe";

std::string no_child(const Context& context) {
    std::error_code error;
    const auto program = std::filesystem::read_symlink(self, error).filename();
    if (error || program != "sidestep")
        return "runs in the command `sidestep` alone, which starts itself as a child";
    return no_gpu(context);
}

// `sidestep publish` in a process of its own; ended with the object.
class PublishingChild {
public:
    // The names are NAME-0 to NAME-(count - 1).
    static Result<PublishingChild> start(const Context& context, const Place& place, const std::string& name,
                                         Bytes bytes, int count, bool bare_handles) {
        std::vector<std::string> words{"sidestep",        "publish",
                                       place.to_string(), name,
                                       "--size",          std::to_string(bytes),
                                       "--count",         std::to_string(count)};
        if (bare_handles) words.push_back("--bare-handles");
        if (context.topology().emulated()) {
            words.push_back("--machine");
            words.push_back(context.topology().name());
        }
        int ends[2] = {-1, -1};
        if (::pipe2(ends, O_CLOEXEC) != 0)
            return Error{ErrorCode::io_error, "no pipe can be made", "publish", {}};
        posix_spawn_file_actions_t actions;
        ::posix_spawn_file_actions_init(&actions);
        ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
        std::vector<char*> arguments;
        for (std::string& word : words) arguments.push_back(word.data());
        arguments.push_back(nullptr);
        posix_spawnattr_t attributes;
        ::posix_spawnattr_init(&attributes);
        sigset_t none;  // of the signals that the command blocks
        ::sigemptyset(&none);
        ::posix_spawnattr_setsigmask(&attributes, &none);
        ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
        PublishingChild child;
        const int failed =
            ::posix_spawn(&child.process_, self, &actions, &attributes, arguments.data(), environ);
        ::posix_spawnattr_destroy(&attributes);
        ::posix_spawn_file_actions_destroy(&actions);
        ::close(ends[1]);
        child.output_ = ends[0];
        if (failed != 0) return Error{ErrorCode::io_error, "the command could not be started", self, {}};
        remember_process(child.process_);
        for (int i = 0; bare_handles && i < count; ++i) child.handles_.push_back(child.line());
        std::string said = child.line();
        if (said.starts_with("filling")) said = child.line();
        if (!said.starts_with("published"))
            return Error{ErrorCode::io_error, "a process that should publish memory did not", name, {}};
        return child;
    }
    PublishingChild(PublishingChild&& other) noexcept
        : process_(std::exchange(other.process_, -1)),
          output_(std::exchange(other.output_, -1)),
          handles_(std::move(other.handles_)) {}
    PublishingChild& operator=(PublishingChild&&) = delete;
    ~PublishingChild() {
        if (process_ > 0) {
            ::kill(process_, SIGTERM);
            forget_process(process_);
            ::waitpid(process_, nullptr, 0);
        }
        if (output_ >= 0) ::close(output_);
    }

    const std::vector<std::string>& handles() const { return handles_; }

private:
    PublishingChild() = default;

    // The next line of its output; empty after 60 s, or where it ended.
    std::string line() {
        std::string text;
        for (char next = 0;;) {
            pollfd entry{output_, POLLIN, 0};
            if (::poll(&entry, 1, 60'000) != 1 || ::read(output_, &next, 1) != 1) return "";
            if (next == '\n') return text;
            text += next;
        }
    }

    pid_t process_ = -1;
    int output_ = -1;
    std::vector<std::string> handles_;
};

std::string fresh_name() {
    static int count = 0;
    return fmt::format("bench-{}-{}", ::getpid(), ++count);
}

Figure time_figure(std::string what, const char* unit) {
    Figure figure;
    figure.what = std::move(what);
    figure.unit = unit;
    figure.more_is_better = false;
    return figure;
}

// The first look at a name: it is asked for, mapped, and a route is planned. Planning is done once before, as
// in a program that runs for a while.
Result<Figure> first_import(const Context& context, const Options& options, int gpu) {
    const int count = options.smoke ? 2 : 9;
    constexpr Bytes bytes = 4_MiB;
    const bool bare = no_raw_cuda(context).empty();
    const std::string name = fresh_name();
    SIDESTEP_TRY(auto child, PublishingChild::start(context, Place::gpu(gpu), name, bytes, count, bare));
    SIDESTEP_TRY(auto target, context.allocate(Place::gpu(gpu), bytes));
    Figure figure = time_figure(fmt::format("first import of gpu:{}'s memory", gpu), "us");
    figure.bytes = bytes;
    for (int i = 0; i < count; ++i) {
        const Buffer shared = Buffer::shared(fmt::format("{}-{}", name, i));
        Result<void> found;
        const double seconds = seconds_of([&] {
            auto route = context.route(shared, target.buffer());
            if (!route) found = route.error();
        });
        if (!found) return found.error();
        if (i > 0) figure.measured.values.push_back(seconds * 1e6);  // the first one opens the GPU here
    }
    if (!bare) return figure;
    SIDESTEP_TRY(auto opened, raw::open_seconds(gpu, child.handles()));
    Samples plain;
    for (std::size_t i = 1; i < opened.size(); ++i) plain.values.push_back(opened[i] * 1e6);
    add_yardstick(figure, "cuIpcOpenMemHandle", std::move(plain));
    return figure;
}

// What a call costs more for published memory that was seen before than for the same call with memory of its
// own.
Result<Figure> known_import(const Context& context, const Options& options, int gpu) {
    constexpr Bytes bytes = 4_MiB;
    const std::string name = fresh_name();
    SIDESTEP_TRY(const auto child, PublishingChild::start(context, Place::gpu(gpu), name, bytes, 1, false));
    SIDESTEP_TRY(auto own, context.allocate(Place::gpu(gpu), bytes));
    SIDESTEP_TRY(auto target, context.allocate(Place::gpu(gpu), bytes));
    const int calls = options.smoke ? 10 : 5'000;
    const auto nanoseconds = [&](const Buffer& from) -> Result<double> {
        Result<void> failed;
        const double seconds = seconds_of([&] {
            for (int i = 0; i < calls && failed; ++i)
                if (auto route = context.route(from, target.buffer()); !route) failed = route.error();
        });
        if (!failed) return failed.error();
        return seconds * 1e9 / calls;
    };
    Figure figure = time_figure(fmt::format("import of gpu:{}'s memory, seen before", gpu), "ns");
    for (int sample = -1; sample < options.samples; ++sample) {
        SIDESTEP_TRY(const auto with, nanoseconds(Buffer::shared(name)));
        SIDESTEP_TRY(const auto without, nanoseconds(own.buffer()));
        if (sample >= 0) figure.measured.values.push_back(std::max(0.0, with - without));
    }
    figure.limit = 1000;
    figure.limit_source = "the bound that is promised";
    return figure;
}

Result<std::vector<Figure>> run_import(const Context& context, const Options& options) {
    std::vector<Figure> figures;
    for (const int gpu : gpus_of(context, options)) {
        for (auto* measure : {first_import, known_import}) {
            SIDESTEP_TRY(auto figure, measure(context, options, gpu));
            figures.push_back(std::move(figure));
        }
        if (context.topology().emulated()) break;  // they are all alike
    }
    return figures;
}

// Reads another process's memory; the driver's own copies within one process are the yardstick.
Result<Figure> read_figure(const Context& context, const Options& options, const Place& from, const Place& to,
                           Bytes bytes) {
    const std::string name = fresh_name();
    SIDESTEP_TRY(const auto child, PublishingChild::start(context, from, name, bytes, 1, false));
    SIDESTEP_TRY(auto target, context.allocate(to, bytes));
    SIDESTEP_CHECK(paint(context, target.buffer(), 1));
    const Buffer shared = Buffer::shared(name);
    CopyOptions how;
    how.lanes = 1;
    std::string path;
    auto figure = measure_rate(link_figure(context, from, to, bytes, "of another process"), options,
                               [&] { return timed_copy(context, shared, target.buffer(), how, &path); });
    if (!figure) return figure;
    figure->path = path;
    if (options.verify) {
        how.verify = true;
        SIDESTEP_CHECK(timed_copy(context, shared, target.buffer(), how));
        figure->verified = true;
    }
    if (!no_raw_cuda(context).empty()) return figure;
    auto raw = raw::copy_rates({{from.index(), to.index()}}, bytes, options.samples);
    if (!raw) return raw.error();
    add_yardstick(*figure, "driver's copy engine, one process, 16 in a row", std::move(*raw));
    return figure;
}

Result<std::vector<Figure>> run_copy(const Context& context, const Options& options) {
    std::vector<Figure> figures;
    for (const auto& [from, to] : pairs_of(context, options))
        for (const Bytes bytes : options.sizes_or({large(context)})) {
            SIDESTEP_TRY(auto figure, read_figure(context, options, from, to, bytes));
            figures.push_back(std::move(figure));
            if (context.topology().emulated()) return figures;  // they are all alike
        }
    return figures;
}

}  // namespace

std::vector<Case> ipc_cases() {
    return {
        {"ipc_import",
         "import of GPU memory that another process published: the first time, and when it was seen before",
         no_child, run_import},
        {"ipc_copy", "copies from GPU memory of another process", no_child, run_copy},
    };
}

}  // namespace sidestep::bench
