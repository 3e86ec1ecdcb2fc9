// Every pair of devices in one line: class, expected rate, latency, the worst link.
#include <fmt/format.h>

#include <string>
#include <vector>

#include <sidestep/drawing.hpp>

#include "topology/text_parts.hpp"

namespace sidestep {

namespace {

using topology::Outline;
using topology::Row;

std::string link_words(const Topology& machine, std::uint32_t position) {
    const Link& link = machine.links()[position];
    return fmt::format("{} - {}", machine.device(link.a).name, machine.device(link.b).name);
}

Row pair_row(const Topology& machine, DeviceId a, DeviceId b) {
    const Pair pair = machine.pair(a, b);
    Row row{machine.device(a).name, machine.device(b).name, to_string(pair.pair)};
    if (!pair.narrowest) return row;
    row.push_back(fmt::format("{:.1f}", pair.gb_per_s));
    row.push_back(fmt::format("{:.2f}", pair.latency_us));
    row.push_back(link_words(machine, *pair.narrowest));
    row.push_back(pair.words);
    return row;
}

}  // namespace

std::string list_pairs(const Topology& machine) {
    const Outline outline(machine);
    // Only the first machine of a cluster: the others are alike, and a list of all pairs would be too long to
    // read.
    auto ids = topology::matrix_devices(outline, 0);
    std::string text;
    if (ids.size() < topology::matrix_devices(outline, -1).size())
        text = fmt::format("machine {}: node0 alone, whose pairs stand for those of the others\n",
                           machine.name());
    if (ids.size() > topology::max_matrix_devices) {
        text += fmt::format("only the first {} of {} devices\n", topology::max_matrix_devices, ids.size());
        ids.resize(topology::max_matrix_devices);
    }
    std::vector<Row> rows{{"from", "to", "class", "GB/s", "us", "worst link", "path"}};
    for (std::size_t i = 0; i < ids.size(); ++i) {
        for (std::size_t j = i + 1; j < ids.size(); ++j) {
            const bool gpu = machine.device(ids[i]).kind == DeviceKind::gpu;
            if (gpu) rows.push_back(pair_row(machine, ids[i], ids[j]));
        }
    }
    return text + topology::table(rows, "");
}

}  // namespace sidestep
