// sidestep repair FOLDER: ends what killed saves and copies left there.
#include <memory>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sidestep/repair.hpp>

#include "verb.hpp"

namespace sidestep::cli {
namespace {

Result<void> run_repair(const std::string& folder, const Globals& globals) {
    const auto done = repair(folder);
    if (!done) return done.error();
    if (globals.json) return print(document({{"done", *done}}));
    if (globals.quiet) return {};
    std::string text;
    for (const std::string& sentence : *done) text += sentence + "\n";
    return print(done->empty() ? fmt::format("nothing is to be done in {}\n", folder) : text);
}

}  // namespace

Action define_repair(CLI::App& app, const Globals& globals) {
    const auto folder = std::make_shared<std::string>();
    app.add_option("FOLDER", *folder, "where a save or a copy was killed")->required()->type_name("");
    return done_or_fails([folder, &globals] { return run_repair(*folder, globals); });
}

}  // namespace sidestep::cli
