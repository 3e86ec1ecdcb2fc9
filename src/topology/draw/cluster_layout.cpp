#include "topology/draw/cluster_layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <unordered_map>

#include "topology/draw/ports.hpp"
#include "topology/draw/text_fit.hpp"
#include "topology/text_parts.hpp"

namespace sidestep::topology::draw {

namespace {

constexpr double cluster_padding = 14;
constexpr double above_panel = 44;
constexpr double machine_height = 56;
constexpr double cluster_switch_height = 26;
constexpr double between_rows = 74;
constexpr double cluster_caption_height = 24;
constexpr double more_width = 96;          // "and 122 more"
constexpr std::size_t max_machines = 18;   // the trays of a rack
constexpr std::size_t some_machines = 10;  // shown of more than that
constexpr std::size_t max_leaves = 16;
constexpr std::size_t max_spines = 8;
constexpr std::size_t max_squares = 8;

class ClusterLayout {
public:
    ClusterLayout(const Outline& outline, const Picked& picked, Scene& scene)
        : outline_(outline), picked_(picked), scene_(scene) {}

    Rect run(const Rect& above) {
        Box panel;
        panel.at = {above.x, above.bottom() + above_panel, above.w, 0};
        panel.title = cluster_text(outline_);
        panel_ = static_cast<int>(scene_.add(std::move(panel)));
        choose();
        double y = above.bottom() + above_panel + cluster_padding;
        const double inner = above.w - 2 * cluster_padding;
        add_machines({above.x + cluster_padding, y, inner, machine_height});
        join_nvswitches(above.bottom());
        y += machine_height;
        const auto add_row = [&](const std::vector<DeviceId>& ids, std::size_t all, const char* one) {
            if (ids.empty()) return;
            add_switches(ids, all, one,
                         {above.x + cluster_padding, y + between_rows, inner, cluster_switch_height});
            y += between_rows + cluster_switch_height;
        };
        add_row(leaves_, network_.leaves.size(), "leaf");
        add_row(spines_, network_.spines.size(), "spine");
        join_network();
        Rect& at = scene_.boxes[static_cast<std::size_t>(panel_)].at;
        at.h = y + cluster_caption_height + cluster_padding - at.y;
        write_caption(y + cluster_caption_height);
        return {above.x, above.bottom(), above.w, at.bottom() - above.bottom()};
    }

private:
    // The machines, and of the switches those that the machines shown lead to.
    void choose() {
        network_ = summarize_network(outline_);
        const std::size_t max = outline_.nodes().size() > max_machines ? some_machines : max_machines;
        nodes_.push_back(picked_.node);
        for (const int node : outline_.nodes())
            if (node != picked_.node && nodes_.size() < max) nodes_.push_back(node);
        std::sort(nodes_.begin(), nodes_.end());
        const std::set<int> shown(nodes_.begin(), nodes_.end());
        const auto joined = [&](DeviceId id, const auto& wanted) {
            const auto& links = outline_.links_of(id);
            return std::any_of(links.begin(), links.end(), [&](std::uint32_t position) {
                return wanted(outline_.far_end(position, id));
            });
        };
        for (const DeviceId id : network_.leaves) {
            if (leaves_.size() == max_leaves) break;
            if (joined(id, [&](DeviceId far) { return shown.count(outline_.device(far).node) != 0; }))
                leaves_.push_back(id);
        }
        const std::set<DeviceId> leaves(leaves_.begin(), leaves_.end());
        for (const DeviceId id : network_.spines) {
            if (spines_.size() == max_spines) break;
            if (joined(id, [&](DeviceId far) { return leaves.count(far) != 0; })) spines_.push_back(id);
        }
    }

    // Below all, where no edge comes in.
    void write_caption(double y) {
        Box& panel = scene_.boxes[static_cast<std::size_t>(panel_)];
        std::string words = fmt::format("{} machines", outline_.nodes().size());
        if (alike_machines(outline_).size() == 1) words += ", all alike";
        for (const std::string& more : {shared_nvlink_words(outline_), network_words(outline_)})
            if (!more.empty()) words += " · " + more;
        panel.texts.push_back({{panel.at.middle_x(), y},
                               fit(words, panel.at.w - 2 * cluster_padding, 12),
                               12,
                               Tone::faint,
                               Anchor::middle,
                               false});
    }

    // Boxes of one row side by side; at its end how many there are beyond.
    std::vector<Rect> row_of(std::size_t count, std::size_t all, const Rect& row, double widest) {
        const bool more = all > count;
        const double pitch = (row.w - (more ? more_width : 0)) / static_cast<double>(count);
        const double width = std::min(pitch - 8, widest);
        std::vector<Rect> places;
        for (std::size_t i = 0; i < count; ++i)
            places.push_back(
                {row.x + pitch * (static_cast<double>(i) + 0.5) - width / 2, row.y, width, row.h});
        if (more) {
            Text text{{row.right(), row.middle_y() + 4},
                      fmt::format("and {} more", all - count),
                      11,
                      Tone::faint,
                      Anchor::end,
                      false};
            text.words = fit(text.words, more_width, 11);
            scene_.boxes[static_cast<std::size_t>(panel_)].texts.push_back(std::move(text));
        }
        return places;
    }

    void add_machines(const Rect& row) {
        const auto places = row_of(nodes_.size(), outline_.nodes().size(), row, 130);
        std::unordered_map<int, std::vector<DeviceId>> gpus;
        const std::set<int> shown(nodes_.begin(), nodes_.end());
        for (const DeviceId id : outline_.of(DeviceKind::gpu))
            if (shown.count(outline_.device(id).node) != 0) gpus[outline_.device(id).node].push_back(id);
        for (std::size_t i = 0; i < nodes_.size(); ++i) {
            const Rect& at = places[i];
            const int node = nodes_[i];
            Box box;
            box.at = at;
            box.role = Role::machine;
            box.inside = panel_;
            box.highlighted = node == picked_.node;
            box.title = fmt::format("node{}: {}{}", node, count_words(gpus[node].size(), DeviceKind::gpu),
                                    box.highlighted ? ", drawn in full above" : "");
            box.texts.push_back({{at.middle_x(), at.y + 18},
                                 fit(fmt::format("node{}", node), at.w - 4, 12, true),
                                 12,
                                 Tone::strong,
                                 Anchor::middle,
                                 true});
            const std::size_t position = scene_.add(std::move(box));
            machine_box_[node] = position;
            add_squares(static_cast<int>(position), at, gpus[node]);
        }
    }

    // A square for each GPU, in rows.
    void add_squares(int machine, const Rect& at, const std::vector<DeviceId>& gpus) {
        const std::size_t count = std::min(gpus.size(), max_squares);
        const std::size_t across = count > 4 ? 4 : count;
        const double size = std::min(9.0, (at.w - 8) / 4 - 3);
        for (std::size_t i = 0; i < count; ++i) {
            const double x = at.middle_x() - (static_cast<double>(across) * (size + 3) - 3) / 2;
            Box square;
            square.at = {x + static_cast<double>(i % across) * (size + 3),
                         at.y + 26 + static_cast<double>(i / across) * (size + 3), size, size};
            square.role = Role::gpu;
            square.inside = machine;
            square.title = outline_.device(gpus[i]).name;
            scene_.add(std::move(square));
        }
    }

    void add_switches(const std::vector<DeviceId>& ids, std::size_t all, const char* one, const Rect& row) {
        const auto places = row_of(ids.size(), all, row, 120);
        for (std::size_t i = 0; i < ids.size(); ++i) {
            const Device& device = outline_.device(ids[i]);
            Box box;
            box.at = places[i];
            box.role = Role::net_switch;
            box.inside = panel_;
            box.title = device.name + (device.model.empty() ? "" : "\n" + device.model);
            std::string words = fmt::format("{} {}", one, i);
            if (text_width(words, 11) > places[i].w - 4) words = fmt::format("{}", i);
            box.texts.push_back({{places[i].middle_x(), places[i].y + 17},
                                 fit(words, places[i].w - 2, 11),
                                 11,
                                 Tone::normal,
                                 Anchor::middle,
                                 false});
            switch_box_[ids[i]] = scene_.add(std::move(box));
        }
    }

    // One bundle from each machine up to the NVSwitches it shares.
    void join_nvswitches(double bottom) {
        for (const int node : nodes_) {
            double rate = 0;
            for (const DeviceId id : picked_.nvswitches) {
                if (outline_.device(id).node >= 0) continue;
                for (const std::uint32_t position : outline_.links_of(id))
                    if (outline_.device(outline_.far_end(position, id)).node == node)
                        rate += outline_.link(position).gb_per_s;
            }
            if (rate <= 0) continue;
            const Rect& at = scene_.boxes[machine_box_.at(node)].at;
            Edge edge;
            edge.points = {{at.middle_x(), at.y}, {at.middle_x(), bottom}};
            edge.ink = Ink::nvlink;
            edge.gb_per_s = rate;
            edge.width = stroke_width(rate);
            edge.title = fmt::format("node{} to the NVSwitches: {}", node, format_rate(rate));
            scene_.edges.push_back(std::move(edge));
        }
    }

    void join_network() {
        Ports ports;
        std::vector<std::size_t> edges;
        const auto join = [&](std::uint32_t position, std::size_t from, std::size_t to) {
            edges.push_back(scene_.edges.size());
            scene_.edges.push_back(curve_of(outline_, position));
            ports.ask(edges.back(), false, from, Side::bottom, scene_.boxes[to].at.middle_x());
            ports.ask(edges.back(), true, to, Side::top, scene_.boxes[from].at.middle_x());
        };
        for (const DeviceId leaf : leaves_) {
            for (const std::uint32_t position : outline_.links_of(leaf)) {
                const DeviceId far = outline_.far_end(position, leaf);
                const auto machine = machine_box_.find(outline_.device(far).node);
                const auto spine = switch_box_.find(far);
                if (machine != machine_box_.end())
                    join(position, machine->second, switch_box_.at(leaf));
                else if (spine != switch_box_.end())
                    join(position, switch_box_.at(leaf), spine->second);
            }
        }
        ports.give(scene_);
        for (const std::size_t edge : edges) bend(scene_.edges[edge], between_rows * 0.5);
    }

    const Outline& outline_;
    const Picked& picked_;
    Scene& scene_;
    int panel_ = -1;
    NetworkSummary network_;
    std::vector<int> nodes_;
    std::vector<DeviceId> leaves_;
    std::vector<DeviceId> spines_;
    std::unordered_map<int, std::size_t> machine_box_;
    std::unordered_map<DeviceId, std::size_t> switch_box_;
};

}  // namespace

Rect lay_out_cluster(const Outline& outline, const Picked& picked, const Rect& above, Scene& scene) {
    if (outline.nodes().size() < 2) return {above.x, above.bottom(), above.w, 0};
    return ClusterLayout(outline, picked, scene).run(above);
}

}  // namespace sidestep::topology::draw
