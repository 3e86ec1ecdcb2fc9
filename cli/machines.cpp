// sidestep machines: what --machine takes without a path.
#include <nlohmann/json.hpp>
#include <sidestep/machines.hpp>

#include <fmt/format.h>

#include "report.hpp"
#include "verb.hpp"

namespace sidestep::cli {
namespace {

std::string as_text(const std::vector<KnownMachine>& machines) {
    std::string text;
    for (const bool recorded : {false, true}) {
        std::string part;
        for (const KnownMachine& machine : machines)
            if (machine.recorded == recorded)
                part += fmt::format("  {:<28} {}\n", machine.name, machine.words);
        if (part.empty()) continue;
        text += recorded ? "\nrecorded, or written after a published topology file\n"
                         : "built in; NAME*128 is a cluster of 128\n";
        text += part;
    }
    return text + "\nsidestep topo --machine NAME shows one, sidestep doctor --machine NAME examines it.\n";
}

Result<void> run_machines(const Globals& globals) {
    const auto machines = known_machines();
    if (!machines) return machines.error();
    if (!globals.json) return print(as_text(*machines));
    nlohmann::ordered_json object = {{"version", 1}, {"machines", nlohmann::ordered_json::array()}};
    for (const KnownMachine& machine : *machines)
        object["machines"].push_back(
            {{"name", machine.name}, {"recorded", machine.recorded}, {"words", machine.words}});
    return print(document(object));
}

}  // namespace

Action define_machines(CLI::App&, const Globals& globals) {
    return done_or_fails([&globals] { return run_machines(globals); });
}

}  // namespace sidestep::cli
