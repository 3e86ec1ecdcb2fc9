// sidestep ps: the groups that run collectives, and who waits for whom.
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/try.hpp"
#include "bench/text.hpp"
#include "interrupt.hpp"
#include "report.hpp"
#include "verb.hpp"

namespace sidestep::cli {
namespace {

struct PsCommand {
    std::chrono::milliseconds pause{0};  // between two looks; 0: one look
};

using Json = nlohmann::ordered_json;

std::string json_of(const std::vector<RunningGroup>& groups) {
    Json list = Json::array();
    for (const RunningGroup& group : groups) {
        Json ranks = Json::array();
        for (const RunningRank& rank : group.ranks)
            ranks.push_back({{"rank", rank.rank},
                             {"process", rank.process},
                             {"alive", rank.alive},
                             {"left", rank.left},
                             {"place", rank.place},
                             {"enqueued", rank.enqueued},
                             {"done", rank.done},
                             {"last", rank.last},
                             {"waiting_seconds", rank.waiting_s},
                             {"error", rank.error}});
        list.push_back({{"name", group.name}, {"id", group.id}, {"ranks", ranks}, {"stuck", group.stuck}});
    }
    const Json whole = {{"version", 1}, {"groups", list}};
    return document(whole);
}

std::string state_of(const RunningRank& rank) {
    if (rank.process == 0) return "not joined";
    if (rank.left) return "left";
    if (!rank.alive) return "dead";
    if (!rank.error.empty()) return rank.error;
    if (rank.waiting_s > 0) return fmt::format("since {:.1f} s", rank.waiting_s);
    return rank.enqueued > rank.done ? "runs" : "idle";
}

std::string text_of(const std::vector<RunningGroup>& groups) {
    if (groups.empty()) return "no group runs\n";
    std::string text;
    for (const RunningGroup& group : groups) {
        const bool named = !group.name.empty() && group.name != group.id;
        text += fmt::format("{}group {}: {} ranks\n", named ? fmt::format("{}, ", group.name) : "", group.id,
                            group.ranks.size());
        std::vector<std::vector<std::string>> rows{
            {"rank", "process", "place", "enqueued", "done", "state", "last operation"}};
        for (const RunningRank& rank : group.ranks)
            rows.push_back({std::to_string(rank.rank), rank.process == 0 ? "-" : std::to_string(rank.process),
                            rank.place, std::to_string(rank.enqueued), std::to_string(rank.done),
                            state_of(rank), rank.last});
        text += bench::align(rows);
        if (!group.stuck.empty()) text += fmt::format("  {}\n", group.stuck);
    }
    return text;
}

Result<void> show(const Globals& globals, bool again) {
    SIDESTEP_TRY(const auto groups, running_groups());
    if (globals.json) return print(json_of(groups));
    // A terminal shows the newest list at its top, anything else one list after the other.
    const bool screen = again && ::isatty(STDOUT_FILENO) != 0;
    return print((screen ? "\x1b[H\x1b[J" : "") + text_of(groups));
}

Result<void> run_ps(const PsCommand& command, const Globals& globals) {
    if (command.pause.count() == 0) return show(globals, false);
    Interrupt interrupt(globals);
    for (;;) {
        SIDESTEP_CHECK(show(globals, true));
        std::this_thread::sleep_for(command.pause);
    }
}

}  // namespace

Action define_ps(CLI::App& app, const Globals& globals) {
    auto command = std::make_shared<PsCommand>();
    app.add_option_function<std::string>(
           "--watch",
           [command](const std::string& text) {
               const auto pause = parse_duration(text.empty() ? "1s" : text);
               if (!pause || pause->count() == 0)
                   throw CLI::ValidationError(
                       "--watch", fmt::format("'{}' is not a time between two looks, such as 500ms", text));
               command->pause = *pause;
           },
           "again and again until Ctrl-C, every second or every TIME, such as 500ms or 3")
        ->type_name("[TIME]")
        ->expected(0, 1);
    return done_or_fails([command, &globals] { return run_ps(*command, globals); });
}

}  // namespace sidestep::cli
