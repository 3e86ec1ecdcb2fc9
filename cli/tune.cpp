// sidestep tune: which algorithm of collectives is quickest at which size on this machine.
#include <stdlib.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "base/try.hpp"
#include "bench/case.hpp"
#include "bench/collective/launch.hpp"
#include "bench/collective/tune.hpp"
#include "interrupt.hpp"
#include "progress.hpp"
#include "report.hpp"
#include "verb.hpp"

namespace sidestep::cli {
namespace {

namespace collective = bench::collective;

constexpr const char* variable = "SIDESTEP_TUNING";

struct TuneCommand {
    std::string to;
    int ranks = 0;  // 0: all GPUs
};

// SIDESTEP_TUNING of the processes that are started, through a file in a folder of its own. Restores what was
// there.
class Forced {
public:
    Forced() {
        if (const char* value = std::getenv(variable)) before_ = value;
        std::error_code error;
        std::string folder = (std::filesystem::temp_directory_path(error) / "sidestep-tune-XXXXXX").string();
        if (::mkdtemp(folder.data()) != nullptr) folder_ = folder;
    }
    ~Forced() {
        if (before_)
            ::setenv(variable, before_->c_str(), 1);
        else
            ::unsetenv(variable);
        std::error_code error;
        if (!folder_.empty()) std::filesystem::remove_all(folder_, error);
    }
    Forced(const Forced&) = delete;
    Forced& operator=(const Forced&) = delete;

    Result<void> take(const std::string& algorithm) {
        if (folder_.empty())
            return Error{ErrorCode::io_error, "no folder for a temporary file can be made", "tune", {}};
        const std::string path = folder_ + "/figures.json";
        SIDESTEP_CHECK(write_file(path, collective::forcing(algorithm)));
        ::setenv(variable, path.c_str(), 1);
        return {};
    }

private:
    std::string folder_;
    std::optional<std::string> before_;
};

collective::Plan plan_of(bool emulated) {
    collective::Plan plan;
    plan.operations = {Collective::all_reduce};
    plan.modes = {emulated ? collective::Mode::stream : collective::Mode::graph};
    plan.sizes = collective::sizes_between(8, emulated ? Bytes{256} << 10 : Bytes{256} << 20, 2);
    plan.verify = false;
    if (emulated) {
        plan.iterations = 5;
        plan.samples = 5;
    }
    return plan;
}

Result<void> run_tune(const TuneCommand& command, const Globals& globals) {
    Interrupt interrupt(globals);
    SIDESTEP_TRY(const auto context, open_context(globals));
    note_lenders(context, globals);
    SIDESTEP_CHECK(can_be_written(command.to));
    if (const std::string missing = bench::fewer_than_two_gpus(context); !missing.empty())
        return Error{
            ErrorCode::unsupported, fmt::format("collectives need two GPUs: {}", missing), "tune", {}};
    std::vector<int> gpus = bench::gpus_of(context, {});
    const int all = std::min(static_cast<int>(gpus.size()), 16);
    if (command.ranks > all)
        return Error{
            ErrorCode::not_found, fmt::format("this machine has GPUs for {} ranks", all), "--ranks", {}};
    gpus.resize(static_cast<std::size_t>(command.ranks > 0 ? command.ranks : all));
    collective::TuneTimes times;
    Forced forced;
    std::vector<const char*> algorithms(std::begin(collective::tuned_algorithms),
                                        std::end(collective::tuned_algorithms));
    for (const char* algorithm :
         {collective::lamport_algorithm, collective::pushed_algorithm, collective::ring_algorithm})
        algorithms.push_back(algorithm);
    const collective::Plan plan = plan_of(context.topology().emulated());
    const std::string said =
        fmt::format("measuring {} algorithms of all_reduce on {} GPUs, from {} to {}", algorithms.size(),
                    gpus.size(), format_bytes(plan.sizes.front()), format_bytes(plan.sizes.back()));
    SIDESTEP_CHECK(print_plan(globals, said));
    const Interrupt::Cancellable cancellable(interrupt);
    for (std::size_t done = 0; done < algorithms.size() && !interrupt.requested(); ++done) {
        const char* algorithm = algorithms[done];
        Progress progress(!globals.quiet && !globals.json);
        progress.update(fmt::format("{} of {}: {}", done + 1, algorithms.size(), algorithm));
        SIDESTEP_CHECK(forced.take(algorithm));
        const auto found = collective::run_in_processes(machine_of(globals), gpus, plan,
                                                        {{}, [&] { return interrupt.requested(); }});
        if (!found) return found.error();
        collective::add_times(times, algorithm, found->lines);
    }
    if (interrupt.requested()) {
        // Figures of some algorithms choose nothing, and are worth a look.
        SIDESTEP_CHECK(globals.json ? Result<void>() : print(collective::times_text(times)));
        return Error{ErrorCode::cancelled, "interrupted: not all algorithms were measured", "tune", {}};
    }
    SIDESTEP_TRY(const auto tuned, collective::tuned_from(times, static_cast<int>(gpus.size())));
    const std::string text = tuned.to_json(context.topology().name());
    const std::string summary = collective::times_text(times) + tuned.to_string();
    // Figures that took long are not lost where the file cannot be written, nor where nobody reads the output any more.
    const auto written = command.to.empty() ? Result<void>() : write_file(command.to, text);
    SIDESTEP_CHECK(print(globals.json ? text : summary));
    if (!written || globals.json) return written;
    return print(command.to.empty()
                     ? std::string("not stored: --to FILE does that\n")
                     : fmt::format("stored; groups use it with {}={}\n", variable, command.to));
}

}  // namespace

Action define_tune(CLI::App& app, const Globals& globals) {
    auto command = std::make_shared<TuneCommand>();
    app.add_option("--to", command->to, "write the figures there, for SIDESTEP_TUNING")->type_name("FILE");
    app.add_option("--ranks", command->ranks, "on the first N GPUs (default: all)")
        ->type_name("N")
        ->check(CLI::Range(2, 16).description(""));
    return done_or_fails([command, &globals] { return run_tune(*command, globals); });
}

}  // namespace sidestep::cli
