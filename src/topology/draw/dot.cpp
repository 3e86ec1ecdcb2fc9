// Prints a machine as a graph for Graphviz.
#include <fmt/format.h>

#include <string>

#include <sidestep/drawing.hpp>

#include "topology/draw/details.hpp"
#include "topology/draw/escape.hpp"
#include "topology/draw/picked.hpp"
#include "topology/draw/scene.hpp"
#include "topology/draw/text_fit.hpp"
#include "topology/text_parts.hpp"

namespace sidestep {

namespace topology::draw {
namespace {

using topology::Outline;

const char* colour_of(Ink ink) {
    switch (ink) {
        case Ink::nvlink:
            return "#2f9e44";
        case Ink::xgmi:
            return "#d6336c";
        case Ink::c2c:
            return "#0c8599";
        case Ink::pix:
            return "#1971c2";
        case Ink::pxb:
            return "#1098ad";
        case Ink::phb:
            return "#e8a100";
        case Ink::node:
            return "#e8590c";
        case Ink::sys:
            return "#c92a2a";
        case Ink::net:
            return "#7048e8";
        case Ink::none:
            break;
    }
    return "#8793a3";
}

const char* look_of(DeviceKind kind) {
    switch (kind) {
        case DeviceKind::cpu:
            return "shape=box, style=\"filled,rounded\", fillcolor=\"#e8edf5\"";
        case DeviceKind::host_bridge:
        case DeviceKind::pcie_switch:
            return "shape=box, style=filled, fillcolor=\"#f1f3f6\"";
        case DeviceKind::gpu:
            return "shape=box, style=\"filled,rounded\", fillcolor=\"#26364d\", fontcolor=white";
        case DeviceKind::nvswitch:
            return "shape=box, style=\"filled,rounded\", fillcolor=\"#e9f7ec\"";
        case DeviceKind::nic:
            return "shape=box, style=\"filled,rounded\", fillcolor=\"#f3effd\"";
        case DeviceKind::drive:
            return "shape=cylinder, style=filled, fillcolor=\"#eef6f6\"";
        case DeviceKind::net_switch:
            break;
    }
    return "shape=box, style=filled, fillcolor=\"#f3effd\"";
}

class DotWriter {
public:
    DotWriter(const Topology& topology, const DrawOptions& options)
        : outline_(topology), picked_(pick(outline_, options.node)) {}

    std::string run() {
        text_ = fmt::format(
            "graph \"{}\" {{\n"
            "  graph [label=\"{}\", labelloc=t, fontname=\"Helvetica\", rankdir=TB, splines=true];\n"
            "  node [fontname=\"Helvetica\", fontsize=11];\n"
            "  edge [fontname=\"Helvetica\", fontsize=9];\n",
            escape_dot(outline_.topology().name()), escape_dot(heading()));
        for (std::size_t i = 0; i < picked_.cpus.size(); ++i) write_socket(i, picked_.cpus[i]);
        for (const DeviceId top : picked_.loose) write_tree(top, "  ");
        for (const DeviceId id : picked_.nvswitches) write_node(id, "  ");
        for (std::uint32_t i = 0; i < outline_.topology().links().size(); ++i) write_link(i);
        return text_ + "}\n";
    }

private:
    // What is drawn, and what is not.
    std::string heading() const {
        std::string words = topology::headline(outline_);
        if (outline_.nodes().size() > 1) {
            words += fmt::format("\nnode{} drawn, {} other machines not drawn", picked_.node,
                                 outline_.nodes().size() - 1);
            const std::string network = topology::network_words(outline_);
            if (!network.empty()) words += "\n" + network;
        }
        const std::string left_out = left_out_words(picked_);
        return left_out.empty() ? words : words + "\n" + left_out;
    }

    void write_socket(std::size_t number, DeviceId cpu) {
        text_ += fmt::format(
            "  subgraph cluster_{} {{\n    label=\"{}\"; style=\"rounded,filled\"; color=\"#d9dfe7\"; "
            "fillcolor=\"#fbfcfd\";\n",
            number, escape_dot(outline_.device(cpu).name));
        write_tree(cpu, "    ");
        text_ += "  }\n";
    }

    // As deep as there are bars at most: see pick().
    void write_tree(DeviceId id, const std::string& indent) {
        write_node(id, indent);
        for (const DeviceId below : outline_.below(id))
            if (picked_.has(below)) write_tree(below, indent);
    }

    void write_node(DeviceId id, const std::string& indent) {
        const Device& device = outline_.device(id);
        std::string label(topology::local_name(device));
        if (!device.model.empty()) label += fmt::format("\n{}", short_model(device.model));
        if (!device.bus_id.empty()) label += "\n" + device.bus_id;
        if (device.memory > 0) label += fmt::format("\n{}", format_bytes(device.memory));
        if (device.acs_redirect) label += "\nACS redirect";
        text_ +=
            fmt::format("{}\"{}\" [label=\"{}\", tooltip=\"{}\", {}];\n", indent, escape_dot(device.name),
                        escape_dot(label), escape_dot(device_details(outline_, id)), look_of(device.kind));
    }

    void write_link(std::uint32_t position) {
        const Link& link = outline_.link(position);
        if (!picked_.has(link.a) || !picked_.has(link.b)) return;
        const auto above_a = outline_.topology().parent(link.a);
        const auto above_b = outline_.topology().parent(link.b);
        const bool tree = above_a == link.b || above_b == link.a;
        const DeviceId below = above_a == link.b ? link.a : link.b;
        const DeviceId above = below == link.a ? link.b : link.a;
        const Ink ink =
            tree ? ink_of_link_up(outline_.topology(), below, above, link.kind) : ink_of_link(link.kind);
        // Upper ends first, so that Graphviz ranks from the processors down; the sockets stand side by side.
        text_ += fmt::format("  \"{}\" -- \"{}\" [penwidth={:.1f}, color=\"{}\", tooltip=\"{}\"{}{}];\n",
                             escape_dot(outline_.device(above).name), escape_dot(outline_.device(below).name),
                             stroke_width(link.gb_per_s), colour_of(ink),
                             escape_dot(topology::draw::link_details(outline_, position)),
                             tree ? "" : fmt::format(", label=\"{}\"", escape_dot(label_of(link))),
                             link.kind == LinkKind::socket ? ", constraint=false" : "");
    }

    static std::string label_of(const Link& link) {
        return topology::is_fabric(link.kind) ? fmt::format("x{}", link.width) : format_rate(link.gb_per_s);
    }

    Outline outline_;
    Picked picked_;
    std::string text_;
};

}  // namespace
}  // namespace topology::draw

std::string draw_dot(const Topology& topology, const DrawOptions& options) {
    return topology::draw::DotWriter(topology, options).run();
}

}  // namespace sidestep
