// sidestep route SRC DST: the planner's answer; moves nothing.
#include <memory>

#include "base/try.hpp"
#include "interrupt.hpp"
#include "operand.hpp"
#include "report.hpp"
#include "verb.hpp"

namespace sidestep::cli {
namespace {

struct RouteCommand {
    std::string from;
    std::string to;
    CopyFlags flags;
};

Result<void> run_route(const Globals& globals, const RouteCommand& command) {
    SIDESTEP_TRY(const auto from, parse_operand(command.from, "SRC"));
    SIDESTEP_TRY(const auto to, parse_operand(command.to, "DST"));
    // With --size the source file need not be there: the question may be about another machine.
    SIDESTEP_TRY(const auto bytes, command.flags.size ? Result<Bytes>(*command.flags.size)
                                                      : copy_size(from, to, command.flags));
    if (bytes == Buffer::whole)
        return Error{ErrorCode::invalid_argument, "a route is priced for a size", from.place.to_string(),
                     "give --size"};

    const Interrupt interrupt(globals);
    SIDESTEP_TRY(const auto context, open_context(globals));
    SIDESTEP_TRY(const auto route,
                 context.route(from.place, to.place, bytes, copy_options(globals, command.flags)));
    return print(globals.json ? route.to_json() + "\n" : painted_report(route.to_string(), globals));
}

}  // namespace

Action define_route(CLI::App& app, const Globals& globals) {
    auto command = std::make_shared<RouteCommand>();
    app.add_option(
           "SRC", command->from,
           "where the bytes are: host, host:N, gpu:N, file:PATH[@OFFSET+SIZE], shared:NAME, p2pmem:BUS-ID")
        ->required()
        ->type_name("");
    app.add_option("DST", command->to, "where they go")->required()->type_name("");
    add_copy_flags(app, command->flags);
    return done_or_fails([command, &globals] { return run_route(globals, *command); });
}

}  // namespace sidestep::cli
