#include "topology/draw/fabric_layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "topology/draw/details.hpp"
#include "topology/draw/ports.hpp"
#include "topology/draw/text_fit.hpp"

namespace sidestep::topology::draw {

namespace {

constexpr double band_gap = 104;  // the curves between GPUs and NVSwitches
constexpr double band_padding = 14;
constexpr double band_switch_height = 44;
constexpr double trunk_room = 54;  // below NVSwitches that are joined to each other
constexpr double band_caption_height = 24;

// The row of NVSwitches, with the links of GPUs from above and links among them below.
class Band {
public:
    Band(const Outline& outline, const Picked& picked, Scene& scene, BoxOf& box_of)
        : outline_(outline), picked_(picked), scene_(scene), box_of_(box_of) {}

    Rect run(const Rect& above) {
        const double top = above.bottom() + band_gap;
        const bool trunks = has_trunks();
        const double height =
            2 * band_padding + band_switch_height + band_caption_height + (trunks ? trunk_room : 0);
        Box panel;
        panel.at = {above.x, top, above.w, height};
        panel.title = caption();
        const double inner = above.w - 2 * band_padding;
        panel.texts.push_back({{above.middle_x(), panel.at.bottom() - band_padding},
                               fit(caption(), inner, 12),
                               12,
                               Tone::faint,
                               Anchor::middle,
                               false});
        panel_ = static_cast<int>(scene_.add(std::move(panel)));
        add_switches({above.x + band_padding, top + band_padding, inner, band_switch_height});
        join_gpus();
        if (trunks) join_switches();
        return {above.x, above.bottom(), above.w, top + height - above.bottom()};
    }

private:
    std::string caption() const {
        double rate = 0;
        int links = 0;
        for (const DeviceId gpu : picked_.gpus) {
            double of_gpu = 0;
            int links_of_gpu = 0;
            for (const std::uint32_t position : outline_.links_of(gpu)) {
                const Link& link = outline_.link(position);
                if (!is_fabric(link.kind)) continue;
                of_gpu += link.gb_per_s;
                links_of_gpu += link.width;
            }
            if (of_gpu > rate) {
                rate = of_gpu;
                links = links_of_gpu;
            }
        }
        std::string words = count_words(picked_.nvswitches.size(), DeviceKind::nvswitch);
        const std::string& model = outline_.device(picked_.nvswitches.front()).model;
        if (!model.empty() && model != "NVIDIA NVSwitch") words += fmt::format(" ({})", short_model(model));
        if (links > 0) words += fmt::format(" · {} NVLinks, {} a GPU", links, format_rate(rate));
        return words;
    }

    bool has_trunks() const {
        for (const DeviceId id : picked_.nvswitches) {
            for (const std::uint32_t position : outline_.links_of(id)) {
                const DeviceId far = outline_.far_end(position, id);
                if (picked_.has(far) && outline_.device(far).kind == DeviceKind::nvswitch) return true;
            }
        }
        return false;
    }

    void add_switches(const Rect& row) {
        const auto count = static_cast<double>(picked_.nvswitches.size());
        const double pitch = std::min(row.w / count, 230.0);
        const double width = std::min(pitch - 8, 170.0);
        const double left = row.middle_x() - pitch * count / 2;
        for (std::size_t i = 0; i < picked_.nvswitches.size(); ++i) {
            const DeviceId id = picked_.nvswitches[i];
            const Device& device = outline_.device(id);
            Box box;
            box.at = {left + pitch * (static_cast<double>(i) + 0.5) - width / 2, row.y, width, row.h};
            box.role = Role::nvswitch;
            box.inside = panel_;
            box.title = device_details(outline_, id);
            int links = 0;
            for (const std::uint32_t position : outline_.links_of(id)) links += outline_.link(position).width;
            const bool wide = width > 100;
            const std::string name = wide ? std::string(local_name(device)) : std::to_string(device.index);
            box.texts.push_back({{box.at.middle_x(), row.y + (wide ? 19 : 27)},
                                 fit(name, width - 6, 12, true),
                                 12,
                                 Tone::strong,
                                 Anchor::middle,
                                 true});
            if (wide)
                box.texts.push_back({{box.at.middle_x(), row.y + 35},
                                     fit(fmt::format("{} links", links), width - 6, 11),
                                     11,
                                     Tone::faint,
                                     Anchor::middle,
                                     false});
            box_of_[id] = scene_.add(std::move(box));
        }
    }

    void join_gpus() {
        Ports ports;
        std::vector<std::size_t> edges;
        for (const DeviceId gpu : picked_.gpus) {
            const std::size_t from = box_of_.at(gpu);
            for (const std::uint32_t position : outline_.links_of(gpu)) {
                const DeviceId far = outline_.far_end(position, gpu);
                if (outline_.device(far).kind != DeviceKind::nvswitch || !picked_.has(far)) continue;
                const std::size_t to = box_of_.at(far);
                edges.push_back(scene_.edges.size());
                scene_.edges.push_back(curve_of(outline_, position));
                ports.ask(edges.back(), false, from, Side::bottom, scene_.boxes[to].at.middle_x());
                ports.ask(edges.back(), true, to, Side::top, scene_.boxes[from].at.middle_x());
            }
        }
        ports.give(scene_);
        for (const std::size_t edge : edges) {
            Edge& made = scene_.edges[edge];
            bend(made, (made.points.back().y - made.points.front().y) * 0.55);
        }
    }

    void join_switches() {
        Ports ports;
        std::vector<std::size_t> edges;
        for (const DeviceId id : picked_.nvswitches) {
            for (const std::uint32_t position : outline_.links_of(id)) {
                const DeviceId far = outline_.far_end(position, id);
                if (far < id || outline_.device(far).kind != DeviceKind::nvswitch || !picked_.has(far))
                    continue;
                edges.push_back(scene_.edges.size());
                scene_.edges.push_back(curve_of(outline_, position));
                ports.ask(edges.back(), false, box_of_.at(id), Side::bottom,
                          scene_.boxes[box_of_.at(far)].at.x);
                ports.ask(edges.back(), true, box_of_.at(far), Side::bottom,
                          scene_.boxes[box_of_.at(id)].at.x);
            }
        }
        ports.give(scene_);
        for (std::size_t i = 0; i < edges.size(); ++i) {
            Edge& made = scene_.edges[edges[i]];
            // A bend of reach r goes down three quarters of it.
            const double depth =
                (trunk_room - 10) * (1 - 0.5 * static_cast<double>(i) / static_cast<double>(edges.size()));
            bend(made, depth * 4 / 3);
        }
    }

    const Outline& outline_;
    const Picked& picked_;
    Scene& scene_;
    BoxOf& box_of_;
    int panel_ = -1;
};

// Arcs below the row of GPUs. Returns how far they reach down.
double draw_arcs(const Outline& outline, const Picked& picked, Scene& scene, const BoxOf& box_of) {
    Ports ports;
    std::vector<std::pair<std::size_t, double>> arcs;  // edge, steps between its ends
    std::map<DeviceId, double> column;
    std::vector<DeviceId> row = picked.gpus;
    std::sort(row.begin(), row.end(), [&](DeviceId a, DeviceId b) {
        return scene.boxes[box_of.at(a)].at.x < scene.boxes[box_of.at(b)].at.x;
    });
    for (std::size_t i = 0; i < row.size(); ++i) column[row[i]] = static_cast<double>(i);
    for (const std::uint32_t position : direct_links(outline, picked)) {
        const Link& link = outline.link(position);
        const bool swap = column[link.a] > column[link.b];
        const DeviceId left = swap ? link.b : link.a;
        const DeviceId right = swap ? link.a : link.b;
        const double steps = column[right] - column[left];
        const std::size_t edge = scene.edges.size();
        scene.edges.push_back(curve_of(outline, position));
        arcs.push_back({edge, steps});
        // Long arcs dive under short ones, so they start in the middle of the box.
        ports.ask(edge, false, box_of.at(left), Side::bottom, 1000 - steps);
        ports.ask(edge, true, box_of.at(right), Side::bottom, steps - 1000);
    }
    ports.give(scene);
    double deepest = 0;
    for (const auto& [edge, steps] : arcs) {
        const double depth = 34 + 24 * (steps - 1);
        bend(scene.edges[edge], std::min(depth, 230.0) * 4 / 3);
        deepest = std::max(deepest, std::min(depth, 230.0) + scene.edges[edge].width / 2);
    }
    return deepest;
}

std::string arcs_caption(const Outline& outline, const std::vector<std::uint32_t>& links) {
    std::map<std::pair<LinkKind, int>, std::pair<std::size_t, double>> groups;
    for (const std::uint32_t position : links) {
        const Link& link = outline.link(position);
        auto& [count, rate] = groups[{link.kind, link.width}];
        ++count;
        rate = std::max(rate, link.gb_per_s);
    }
    std::string words;
    for (const auto& [key, group] : groups) {
        const char* name = key.first == LinkKind::xgmi ? "Infinity Fabric" : "NVLink";
        words +=
            fmt::format("{}{} pairs joined by {} {} link{}, {} one way", words.empty() ? "" : " · ",
                        group.first, key.second, name, key.second == 1 ? "" : "s", format_rate(group.second));
    }
    return words;
}

}  // namespace

std::vector<std::uint32_t> direct_links(const Outline& outline, const Picked& picked) {
    std::vector<std::uint32_t> links;
    for (const DeviceId gpu : picked.gpus) {
        for (const std::uint32_t position : outline.links_of(gpu)) {
            const DeviceId far = outline.far_end(position, gpu);
            const bool other = far > gpu && outline.device(far).kind == DeviceKind::gpu && picked.has(far);
            if (other && is_fabric(outline.link(position).kind)) links.push_back(position);
        }
    }
    return links;
}

Rect lay_out_fabric(const Outline& outline, const Picked& picked, const Rect& trees, Scene& scene,
                    BoxOf& box_of) {
    Rect taken{trees.x, trees.bottom(), trees.w, 0};
    Rect above = trees;
    const auto direct = direct_links(outline, picked);
    if (!direct.empty()) {
        const double panel_padding = trees.bottom() - scene.boxes[box_of.at(picked.gpus.front())].at.bottom();
        const double reach = draw_arcs(outline, picked, scene, box_of) - panel_padding;
        above.h += reach + 10;
        scene.texts.push_back({{trees.middle_x(), above.bottom() + 10},
                               fit(arcs_caption(outline, direct), trees.w, 12),
                               12,
                               Tone::faint,
                               Anchor::middle,
                               false});
        above.h += band_caption_height;
        taken.h = above.bottom() - trees.bottom();
    }
    if (!picked.nvswitches.empty()) {
        const Rect band = Band(outline, picked, scene, box_of).run(above);
        taken.h = band.bottom() - trees.bottom();
    }
    return taken;
}

namespace {

struct SocketLink {
    std::uint32_t position = 0;
    DeviceId a = 0;
    DeviceId b = 0;
};

std::vector<SocketLink> socket_links(const Outline& outline, const Picked& picked) {
    std::vector<SocketLink> links;
    for (const DeviceId cpu : picked.cpus) {
        for (const std::uint32_t position : outline.links_of(cpu)) {
            const DeviceId far = outline.far_end(position, cpu);
            if (far > cpu && picked.has(far) && outline.device(far).kind == DeviceKind::cpu)
                links.push_back({position, cpu, far});
        }
    }
    return links;
}

constexpr double lowest_arc = 20;
constexpr double step_of_arc = 10;

}  // namespace

double room_above_sockets(const Outline& outline, const Picked& picked) {
    if (picked.cpus.size() < 3 || socket_links(outline, picked).empty()) return 0;
    return lowest_arc + step_of_arc * static_cast<double>(picked.cpus.size()) + 6;
}

void draw_socket_links(const Outline& outline, const Picked& picked, Scene& scene, const BoxOf& box_of) {
    // The order of the panels, which is not that of the cpus.
    std::vector<DeviceId> order = picked.cpus;
    std::sort(order.begin(), order.end(), [&](DeviceId a, DeviceId b) {
        return scene.boxes[box_of.at(a)].at.x < scene.boxes[box_of.at(b)].at.x;
    });
    std::map<DeviceId, std::size_t> place;
    for (std::size_t i = 0; i < order.size(); ++i) place[order[i]] = i;
    std::set<std::size_t> labelled;
    for (const SocketLink& socket : socket_links(outline, picked)) {
        const Link& link = outline.link(socket.position);
        const bool swap = place[socket.a] > place[socket.b];
        const Box& left = scene.boxes[box_of.at(swap ? socket.b : socket.a)];
        const Box& right = scene.boxes[box_of.at(swap ? socket.a : socket.b)];
        const std::size_t from = place[swap ? socket.b : socket.a];
        const std::size_t steps = place[swap ? socket.a : socket.b] - from;
        Edge edge;
        edge.ink = ink_of_link(link.kind == LinkKind::pcie ? LinkKind::socket : link.kind);
        edge.gb_per_s = link.gb_per_s;
        edge.width = stroke_width(link.gb_per_s);
        edge.title = link_details(outline, socket.position);
        const Rect& panel = scene.boxes[static_cast<std::size_t>(left.inside)].at;
        if (steps == 1) {
            const double y = left.at.middle_y();
            edge.points = {{left.at.right(), y}, {right.at.x, y}};
            const double far = scene.boxes[static_cast<std::size_t>(right.inside)].at.x;
            Text text{{(panel.right() + far) / 2, y - edge.width / 2 - 6},
                      format_rate(link.gb_per_s),
                      11,
                      Tone::faint,
                      Anchor::middle,
                      false};
            if (extent(text).w < far - panel.right() && labelled.insert(from).second)
                scene.texts.push_back(std::move(text));
        } else {
            edge.curve = true;
            const double height =
                lowest_arc + step_of_arc * static_cast<double>(steps) + (left.at.y - panel.y);
            const double reach = height * 4 / 3;
            edge.points = {{left.at.middle_x() + 8, left.at.y},
                           {left.at.middle_x() + 8, left.at.y - reach},
                           {right.at.middle_x() - 8, right.at.y - reach},
                           {right.at.middle_x() - 8, right.at.y}};
        }
        scene.edges.push_back(std::move(edge));
    }
}

}  // namespace sidestep::topology::draw
