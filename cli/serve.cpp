// sidestep serve: lets other machines reach places of this one.
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/try.hpp"
#include "interrupt.hpp"
#include "report.hpp"
#include "verb.hpp"

namespace sidestep::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string json_of(const Serving& serving) {
    Json json;
    json["listening"] = serving.addresses();
    json["key_file"] = serving.key_file();
    json["allowed"] = serving.allowed();
    json["metrics"] = serving.metrics_addresses();
    return document(json);
}

std::string text_of(const Serving& serving, const std::string& listen) {
    std::string text;
    for (const std::string& address : serving.addresses()) text += fmt::format("listening at {}\n", address);
    text += fmt::format("key: {}; whoever has it may reach what is allowed\n", serving.key_file());
    if (serving.allowed().empty()) text += "nothing is allowed; say what with --allow\n";
    for (const std::string& line : serving.allowed()) text += fmt::format("allowed: {}\n", line);
    for (const std::string& address : serving.metrics_addresses())
        text += fmt::format("metrics: http://{}/metrics\n", address);
    if (listen.empty()) text += "only this machine's programs reach it; --listen HOST:PORT lets others\n";
    return text + "Ctrl-C ends it\n";
}

Result<void> run_serve(const Globals& globals, ServeOptions options) {
    Interrupt interrupt(globals);
    SIDESTEP_TRY(const auto context, open_context(globals));
    const Interrupt::Cancellable ends(interrupt);
    options.key_file = globals.key_file;
    const std::string listen = options.listen;
    if (listen.empty()) options.listen = ServeOptions{}.listen;
    SIDESTEP_TRY(const auto serving, context.serve(options));
    if (globals.json) {
        SIDESTEP_CHECK(print(json_of(serving)));
    } else if (!globals.quiet) {
        SIDESTEP_CHECK(print(text_of(serving, listen)));
    }
    while (!interrupt.requested()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return {};
}

}  // namespace

Action define_serve(CLI::App& app, const Globals& globals) {
    auto options = std::make_shared<ServeOptions>();
    options->listen.clear();
    app.add_option(
           "--listen", options->listen,
           "the address and port to listen at; port 0: any (default: 127.0.0.1:47900, this machine only)")
        ->type_name("HOST:PORT");
    app.add_option(
           "--allow", options->allow,
           "what others may reach, with commas between: gpu:0, gpu:*, gpu:0=8GiB, host=8GiB (memory that is "
           "allocated for them), file:/data (for reading), file:/out=rw, shared:NAME; may be given several "
           "times (default: nothing)")
        ->type_name("PLACE,...")
        ->join(',');
    app.add_option("--metrics", options->metrics,
                   "where a page for Prometheus has what the node counts: GET /metrics, without a key "
                   "(default: nowhere)")
        ->type_name("HOST:PORT");
    add_bytes(
        app, "--rate", [options](Bytes rate) { options->rate = rate; },
        "most bytes a second that all clients together move here, and from here (default: no bound)");
    app.add_option("--name", options->name, "what this machine is called in answers (default: its host name)")
        ->type_name("NAME");
    return done_or_fails([options, &globals] { return run_serve(globals, *options); });
}

}  // namespace sidestep::cli
