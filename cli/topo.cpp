// sidestep topo: the machine the library sees.
#include "report.hpp"
#include "verb.hpp"

namespace sidestep::cli {
namespace {

Result<void> run_topo(const Globals& globals) {
    const auto context = open_context(globals);
    if (!context) return context.error();
    const Topology& topology = context->topology();
    std::string text = globals.json ? topology.to_json() : topology.to_text();
    if (text.empty() || text.back() != '\n') text += '\n';
    return print(text);
}

}  // namespace

Action define_topo(CLI::App&, const Globals& globals) {
    return [&globals] { return run_topo(globals); };
}

}  // namespace sidestep::cli
