#include "bench_net.hpp"

#include <unistd.h>

#include <array>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"
#include "bench/net.hpp"
#include "bench/text.hpp"

namespace sidestep::cli {
namespace {

std::string host_name() {
    std::array<char, 256> name{};
    return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "this machine";
}

}  // namespace

void define_net(CLI::App& bench, NetCommand& command) {
    command.app = bench.add_subcommand("net", "copies to a node that serves and back, plain sockets beside");
    command.app->fallthrough();
    command.app
        ->add_option("NODE", command.node, "the node: a name of --nodes, or one that the resolver knows")
        ->required()
        ->type_name("");
    command.app
        ->add_option("OTHER", command.other,
                     "another node: copies from the first to it and back, past this machine")
        ->type_name("");
}

Result<void> measure_network(const NetCommand& command, const Context& context, const bench::Options& options,
                             const std::function<Result<void>(const std::string&)>& say,
                             const std::function<void(const bench::Report&)>& keep, bench::Report& report) {
    if (command.node == command.other)
        return Error{ErrorCode::invalid_argument, "these are one node", command.node,
                     "name two, or one to measure copies between it and this machine"};
    SIDESTEP_CHECK(say(bench::head_text(report) + fmt::format("here {}\n", host_name())));
    bench::NetPlan plan;
    plan.node = command.node;
    plan.other = command.other;
    if (!options.gpus.empty()) plan.gpu = options.gpus.front();
    auto cases =
        bench::measure_net(context, plan, options, {say, [&](const std::vector<bench::CaseResult>& so_far) {
                                                        report.cases = so_far;
                                                        keep(report);
                                                    }});
    if (!cases) return cases.error();
    report.cases = std::move(*cases);
    return {};
}

}  // namespace sidestep::cli
