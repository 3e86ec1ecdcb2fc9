// sidestep publish PLACE NAME: memory that other processes copy to and from as shared:NAME.
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "base/try.hpp"
#include "bench/raw_cuda_ipc.hpp"
#include "interrupt.hpp"
#include "operand.hpp"
#include "pattern.hpp"
#include "progress.hpp"
#include "report.hpp"
#include "verb.hpp"

namespace sidestep::cli {
namespace {

struct PublishCommand {
    std::string place;
    std::string name;
    Bytes size = default_size;
    PublishOptions options;
    // For the benchmark's own child, and in no help: more names, and handles of the driver for as many
    // allocations that are not published, each on a line of its own.
    int count = 1;
    bool bare_handles = false;
};

struct Published {
    Allocation memory;
    Publication publication;
};

Result<std::vector<Published>> publish_all(const Context& context, const Place& place,
                                           const PublishCommand& command, const Globals& globals) {
    std::vector<Published> all;
    for (int i = 0; i < command.count; ++i) {
        SIDESTEP_TRY(auto memory,
                     context.allocate(place, command.size,
                                      place.is_host() ? MemoryKind::pageable : MemoryKind::automatic));
        // What is refused at once has only its error.
        const std::string plan =
            fmt::format("filling {} at {}", format_bytes(command.size), place.to_string());
        SIDESTEP_CHECK(i == 0 ? print_plan(globals, plan, command.size) : Result<void>());
        Progress progress(!globals.quiet && !globals.json);
        const auto draw = [&](Bytes done, Bytes total) {
            progress.update(fmt::format("filling {} of {}", format_bytes(done), format_bytes(total)));
        };
        SIDESTEP_CHECK(fill(context, memory.buffer(), Pattern::known, draw));
        const std::string name = command.count == 1 ? command.name : fmt::format("{}-{}", command.name, i);
        SIDESTEP_TRY(auto publication, context.publish(name, memory, command.options));
        all.push_back({std::move(memory), std::move(publication)});
    }
    return all;
}

Result<std::vector<Allocation>> print_handles(const Context& context, const Place& place,
                                              const PublishCommand& command) {
    std::vector<Allocation> all;
    for (int i = 0; command.bare_handles && i < command.count; ++i) {
        SIDESTEP_TRY(auto memory, context.allocate(place, command.size));
        SIDESTEP_TRY(const auto handle, bench::raw::ipc_handle(place.index(), memory.address()));
        SIDESTEP_CHECK(print(handle + "\n"));
        all.push_back(std::move(memory));
    }
    return all;
}

Result<void> run_publish(const Globals& globals, const PublishCommand& command) {
    SIDESTEP_TRY(const auto operand, parse_operand(command.place, "PLACE"));
    SIDESTEP_CHECK(Place::parse("shared:" + command.name));
    Interrupt interrupt(globals);
    SIDESTEP_TRY(const auto context, open_context(globals));
    const Interrupt::Cancellable withdrawn_first(interrupt);
    const auto published = publish_all(context, operand.place, command, globals);
    if (!published) return published.error();
    SIDESTEP_TRY(const auto bare, print_handles(context, operand.place, command));
    const std::string text =
        globals.json ? fmt::format("{{\"name\": \"{}\", \"place\": \"{}\", \"bytes\": {}}}\n", command.name,
                                   operand.place.to_string(), command.size)
                     : fmt::format("published {} of {} as shared:{}; Ctrl-C withdraws it\n",
                                   format_bytes(command.size), operand.place.to_string(), command.name);
    if (!globals.quiet || globals.json) SIDESTEP_CHECK(print(text));
    while (!interrupt.requested()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return {};
}

}  // namespace

Action define_publish(CLI::App& app, const Globals& globals) {
    auto command = std::make_shared<PublishCommand>();
    app.add_option("PLACE", command->place, "where the memory is allocated: host, host:N, gpu:N")
        ->required()
        ->type_name("");
    app.add_option("NAME", command->name, "how others find it: shared:NAME")->required()->type_name("");
    add_bytes(
        app, "--size", [command](Bytes bytes) { command->size = bytes; }, "bytes of it (default: 256MiB)");
    add_duration(
        app, "--deadline", [command](std::chrono::milliseconds value) { command->options.deadline = value; },
        "fail when the name is not there by then, such as 500ms or 30s (default: none)");
    app.add_option("--count", command->count)->check(CLI::Range(1, 1000))->group("");
    app.add_flag("--bare-handles", command->bare_handles)->group("");
    return done_or_fails([command, &globals] { return run_publish(globals, *command); });
}

}  // namespace sidestep::cli
