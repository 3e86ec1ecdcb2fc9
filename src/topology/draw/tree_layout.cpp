#include "topology/draw/tree_layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "topology/draw/details.hpp"
#include "topology/draw/text_fit.hpp"

namespace sidestep::topology::draw {

namespace {

constexpr double gap = 10;      // between columns
constexpr double row_gap = 18;  // between a bar and what hangs below it
constexpr double panel_padding = 14;
constexpr double panel_gap = 84;  // holds the words of the link between two sockets
constexpr double narrow_panel_gap = 44;
constexpr std::size_t few_cpus = 4;  // more are drawn closer together
constexpr double cpu_height = 48;
constexpr double bar_height = 24;
constexpr double gpu_width = 136;
constexpr double wide_gpu_width = 214;  // where there are few, so that their whole names fit
constexpr double gpu_height = 74;
constexpr double card_height = 38;
constexpr double card_row = card_height + 8;
constexpr double lane = 7;          // between two lines that run down side by side
constexpr double card_width = 104;  // without the lanes at its left
constexpr double widest_card = 170;
constexpr double narrowest_cpu = 172;
constexpr double lane_margin = 8;       // from the left edge of a column to its first line
constexpr std::size_t max_stacked = 4;  // cards on top of each other where no GPU gives a column

bool is_card(DeviceKind kind) {
    return kind == DeviceKind::nic || kind == DeviceKind::drive;
}

// What hangs below one bar: columns, each of them topped by cards and ending in a GPU or in further bars.
struct TreeColumn {
    std::vector<DeviceId> ends;  // one GPU, or one bar, or a few bars without GPUs on top of each other
    std::vector<DeviceId> cards;
    double width = 0;
};

// A line that is drawn when both its ends have their place.
struct Lane {
    std::size_t from = 0;  // box above
    DeviceId to = 0;
    double x = 0;           // where it runs down
    bool sideways = false;  // it ends at the left side of a card
};

class TreeLayout {
public:
    TreeLayout(const Outline& outline, const Picked& picked, Scene& scene, BoxOf& box_of)
        : outline_(outline),
          picked_(picked),
          scene_(scene),
          box_of_(box_of),
          column_width_(picked.gpus.size() <= 2   ? wide_gpu_width
                        : picked.gpus.size() <= 4 ? (gpu_width + wide_gpu_width) / 2
                                                  : gpu_width),
          gap_(picked.cpus.size() > few_cpus ? narrow_panel_gap : panel_gap),
          stacked_(picked.cpus.size() > few_cpus ? 2 : 1) {}

    Rect run(Point at) {
        std::vector<int> panels;
        double x = at.x;
        double bottom = at.y;
        std::vector<DeviceId> cpus = picked_.cpus;
        std::stable_sort(cpus.begin(), cpus.end(),
                         [this](DeviceId a, DeviceId b) { return first_gpu(a) < first_gpu(b); });
        for (const DeviceId cpu : cpus) {
            panels.push_back(add_panel(x, at.y, outline_.device(cpu).name));
            const double width = width_of(cpu);
            bottom = std::max(bottom, place_bar(cpu, x + panel_padding, at.y + panel_padding, width));
            close_panel(panels.back(), width);
            x += width + 2 * panel_padding + gap_;
        }
        if (!picked_.loose.empty()) {
            panels.push_back(add_panel(x, at.y, "not seen in the PCIe tree"));
            const double width = place_loose(x + panel_padding, at.y + panel_padding, bottom);
            close_panel(panels.back(), width);
            x += width + 2 * panel_padding + gap_;
        }
        bottom = align_gpus(bottom);
        for (const int panel : panels)
            scene_.boxes[static_cast<std::size_t>(panel)].at.h = bottom + panel_padding - at.y;
        draw_lanes();
        return {at.x, at.y, std::max(0.0, x - gap_ - at.x), bottom + panel_padding - at.y};
    }

private:
    int add_panel(double x, double y, std::string title) {
        Box panel;
        panel.at = {x, y, 0, 0};
        panel.title = std::move(title);
        panel_ = static_cast<int>(scene_.add(std::move(panel)));
        return panel_;
    }

    void close_panel(int panel, double inner_width) {
        scene_.boxes[static_cast<std::size_t>(panel)].at.w = inner_width + 2 * panel_padding;
    }

    // The lowest index of a GPU at or below a device, so that columns stand in the order of the GPUs.
    int first_gpu(DeviceId id) const {
        if (outline_.device(id).kind == DeviceKind::gpu) return outline_.device(id).index;
        int first = std::numeric_limits<int>::max();
        for (const DeviceId below : outline_.below(id))
            if (picked_.has(below)) first = std::min(first, first_gpu(below));
        return first;
    }

    bool leads_to_gpu(DeviceId id) const { return first_gpu(id) < std::numeric_limits<int>::max(); }

    std::vector<TreeColumn> columns_of(const std::vector<DeviceId>& ids) {
        std::vector<DeviceId> ends;
        std::vector<DeviceId> cards;
        for (const DeviceId id : ids)
            if (picked_.has(id)) (is_card(outline_.device(id).kind) ? cards : ends).push_back(id);
        std::stable_sort(ends.begin(), ends.end(),
                         [this](DeviceId a, DeviceId b) { return first_gpu(a) < first_gpu(b); });
        std::vector<TreeColumn> columns;
        std::size_t with_gpus = 0;
        for (const DeviceId id : ends) {
            const bool gpus = leads_to_gpu(id);
            const bool room = columns.size() > with_gpus && columns.back().ends.size() < stacked_;
            if (gpus || !room) columns.emplace_back();
            with_gpus += gpus ? 1 : 0;
            columns.back().ends.push_back(id);
            columns.back().width = std::max(columns.back().width, width_of(id));
        }
        share_cards(columns, cards, with_gpus > 0 ? with_gpus : columns.size());
        return columns;
    }

    // Cards stand above the columns that lead to GPUs, so that a switch keeps its GPU and its card close.
    void share_cards(std::vector<TreeColumn>& columns, const std::vector<DeviceId>& cards,
                     std::size_t usable) const {
        if (columns.empty() && !cards.empty()) {
            columns.resize((cards.size() + max_stacked - 1) / max_stacked);
            usable = columns.size();
        }
        for (std::size_t i = 0; i < cards.size(); ++i)
            columns[i * usable / cards.size()].cards.push_back(cards[i]);
        for (TreeColumn& column : columns)
            if (column.ends.size() > 1) column.width += margin_of(column);
        for (TreeColumn& column : columns)
            if (margin_of(column) > 0) column.width = std::max(column.width, margin_of(column) + card_width);
    }

    // How many cards stand side by side above a column, and how many rows of them there are.
    std::size_t across(const TreeColumn& column) const {
        const auto fitting = static_cast<std::size_t>((column.width + gap) / (column_width_ + gap));
        return std::clamp<std::size_t>(fitting, 1, std::max<std::size_t>(column.cards.size(), 1));
    }
    std::size_t rows_of(const TreeColumn& column) const {
        return (column.cards.size() + across(column) - 1) / across(column);
    }
    // Room for the lines that run down at the left of what stands in a column; none where nothing stands in
    // the way.
    double margin_of(const TreeColumn& column) const {
        if (column.cards.empty() && column.ends.size() < 2) return 0;
        return lane_margin + lane * static_cast<double>(rows_of(column) + column.ends.size());
    }

    double width_of(DeviceId id) {
        const DeviceKind kind = outline_.device(id).kind;
        if (kind == DeviceKind::gpu) return column_width_;
        const auto known = widths_.find(id);
        if (known != widths_.end()) return known->second;
        const double min = kind == DeviceKind::cpu ? narrowest_cpu : gpu_width;
        const double width = std::max(min, width_of_columns(columns_of(outline_.below(id))));
        widths_[id] = width;
        return width;
    }

    static double width_of_columns(const std::vector<TreeColumn>& columns) {
        double width = -gap;
        for (const TreeColumn& column : columns) width += column.width + gap;
        return std::max(width, 0.0);
    }

    // A bar (or cpu) with all that hangs below it. Returns the lowest edge of it.
    double place_bar(DeviceId id, double x, double y, double width) {
        const bool cpu = outline_.device(id).kind == DeviceKind::cpu;
        const Rect at{x, y, width, cpu ? cpu_height : bar_height};
        const std::size_t box = cpu ? add_cpu(id, at) : add_bar(id, at);
        return std::max(at.bottom(),
                        place_columns(columns_of(outline_.below(id)), box, x, at.bottom() + row_gap, width));
    }

    double place_columns(const std::vector<TreeColumn>& columns, std::optional<std::size_t> above, double x,
                         double y, double width) {
        double bottom = y - row_gap;
        double margin = 0;  // the same in all columns, so that the cards stand in line
        for (const TreeColumn& column : columns) margin = std::max(margin, margin_of(column));
        const double extra = columns.empty() ? 0
                                             : std::max(0.0, width - width_of_columns(columns)) /
                                                   static_cast<double>(columns.size());
        for (const TreeColumn& column : columns) {
            const double wide = column.width + extra;
            const double inset = column.width >= margin + card_width ? margin : margin_of(column);
            const double below = place_cards(column, above, {x, y, wide, 0}, inset);
            bottom = std::max(bottom, place_ends(column, above, {x, below, wide, 0}, inset));
            x += wide + gap;
        }
        return bottom;
    }

    // The cards of a column, from the upper edge of `at` down. Returns where the next thing may begin.
    double place_cards(const TreeColumn& column, std::optional<std::size_t> above, const Rect& at,
                       double inset) {
        const std::size_t side_by_side = across(column);
        const std::size_t rows = rows_of(column);
        const double cell = (at.w + gap) / static_cast<double>(side_by_side) - gap;
        for (std::size_t i = 0; i < column.cards.size(); ++i) {
            const std::size_t row = i / side_by_side;
            const double left = at.x + static_cast<double>(i % side_by_side) * (cell + gap);
            const double top = at.y + static_cast<double>(row) * card_row;
            add_card(column.cards[i], {left + inset, top, std::min(cell - inset, widest_card), card_height});
            // Lower cards have their lanes further left, so that no line runs through a card.
            const double run = left + inset - lane * static_cast<double>(row + 1);
            if (above) lanes_.push_back({*above, column.cards[i], run, true});
        }
        return at.y + static_cast<double>(rows) * card_row + (rows > 0 ? row_gap - 8 : 0);
    }

    // What stands below the cards of a column. Returns the lowest edge.
    double place_ends(const TreeColumn& column, std::optional<std::size_t> above, const Rect& at,
                      double inset) {
        if (column.ends.empty()) return at.y - row_gap;
        double y = at.y;
        double bottom = y;
        for (std::size_t i = 0; i < column.ends.size(); ++i) {
            const DeviceId id = column.ends[i];
            const bool aside = column.ends.size() > 1;  // bars on top of each other leave room for the lines
            const double left = aside ? at.x + inset : at.x;
            // With cards in the way the line runs left of them, below the lines of lower ends.
            double run = at.x + at.w / 2;
            if (margin_of(column) > 0)
                run = at.x + inset - lane * static_cast<double>(rows_of(column) + i + 1);
            if (outline_.device(id).kind == DeviceKind::gpu) {
                const bool narrow = run < at.x + (at.w - column_width_) / 2;
                add_gpu(id,
                        {narrow ? at.x : at.x + (at.w - column_width_) / 2, y, column_width_, gpu_height});
                bottom = y + gpu_height;
            } else {
                bottom = place_bar(id, left, y, at.x + at.w - left);
            }
            if (above) lanes_.push_back({*above, id, run, aside});
            y = bottom + row_gap;
        }
        return bottom;
    }

    // Devices whose place in the tree is not known. `bottom` grows to hold them.
    double place_loose(double x, double y, double& bottom) {
        Text heading{{x, y + 14}, "not seen in the PCIe tree", 12, Tone::faint, Anchor::start, false};
        const double width =
            std::max({width_of_columns(columns_of(picked_.loose)), column_width_, extent(heading).w});
        scene_.boxes[static_cast<std::size_t>(panel_)].texts.push_back(std::move(heading));
        bottom = std::max(bottom, place_columns(columns_of(picked_.loose), std::nullopt, x, y + 28, width));
        return width;
    }

    std::size_t add(DeviceId id, Role role, const Rect& at) {
        Box box;
        box.at = at;
        box.role = role;
        box.title = device_details(outline_, id);
        box.inside = panel_;
        const std::size_t position = scene_.add(std::move(box));
        box_of_[id] = position;
        return position;
    }

    void write(std::size_t box, Text text, double width) {
        text.words = fit(text.words, width, text.size, text.bold);
        if (!text.words.empty()) scene_.boxes[box].texts.push_back(std::move(text));
    }

    std::size_t add_cpu(DeviceId id, const Rect& at) {
        const Device& device = outline_.device(id);
        const std::size_t box = add(id, Role::cpu, at);
        const std::string bytes = device.memory > 0 ? format_bytes(device.memory) : "";
        const bool wide = at.w > 260 && !bytes.empty();
        const std::string memory = wide ? bytes + " memory" : bytes;
        const double right = text_width(memory, 12);
        write(
            box,
            {{at.x + 12, at.y + 20}, std::string(local_name(device)), 14, Tone::strong, Anchor::start, true},
            at.w - right - 32);
        write(box, {{at.right() - 12, at.y + 20}, memory, 12, Tone::normal, Anchor::end, false}, at.w / 2);
        const std::string numa =
            device.numa_node >= 0 ? fmt::format("NUMA {}{}", wide ? "node " : "", device.numa_node) : "";
        write(box, {{at.right() - 12, at.y + 38}, numa, 11, Tone::faint, Anchor::end, false}, at.w / 2);
        write(box,
              {{at.x + 12, at.y + 38},
               wide ? device.model : short_model(device.model),
               12,
               Tone::faint,
               Anchor::start,
               false},
              at.w - text_width(numa, 11) - 32);
        return box;
    }

    std::size_t add_bar(DeviceId id, const Rect& at) {
        const Device& device = outline_.device(id);
        const bool bridge = device.kind == DeviceKind::host_bridge;
        const std::size_t box = add(id, bridge ? Role::host_bridge : Role::pcie_switch, at);
        std::string words = fmt::format("{} {}", bridge ? "host bridge" : "PCIe switch", device.index);
        if (device.acs_redirect) words += " · ACS redirect";
        scene_.boxes[box].marked = device.acs_redirect;
        const Text name{{at.x + 10, at.y + 16}, words, 11, device.acs_redirect ? Tone::warning : Tone::normal,
                        Anchor::start,          false};
        const double used = text_width(words, 11);
        write(box, name, at.w - 20);
        const std::string more = bridge ? device.bus_id : short_link(outline_, id);
        if (used + text_width(more, 11) + 34 < at.w)
            write(box, {{at.right() - 10, at.y + 16}, more, 11, Tone::faint, Anchor::end, false}, at.w);
        return box;
    }

    void add_gpu(DeviceId id, const Rect& at) {
        const Device& device = outline_.device(id);
        const std::size_t box = add(id, Role::gpu, at);
        const double width = at.w - 20;
        const std::string memory = device.memory > 0 ? format_bytes(device.memory) : "";
        write(
            box,
            {{at.x + 10, at.y + 19}, std::string(local_name(device)), 13, Tone::on_gpu, Anchor::start, true},
            width - text_width(memory, 11) - 4);
        write(box, {{at.right() - 10, at.y + 19}, memory, 11, Tone::on_gpu, Anchor::end, false}, width / 2);
        const std::string shortfall = short_shortfall(device);
        scene_.boxes[box].marked = !shortfall.empty();
        double y = at.y + 35;
        for (const std::string& words : {short_model(device.model), device.bus_id,
                                         shortfall.empty() ? short_link(outline_, id) : shortfall}) {
            write(box, {{at.x + 10, y}, words, 11, Tone::faint_on_gpu, Anchor::start, false}, width);
            y += words.empty() ? 0 : 15;
        }
    }

    void add_card(DeviceId id, const Rect& at) {
        const Device& device = outline_.device(id);
        const bool nic = device.kind == DeviceKind::nic;
        const std::size_t box = add(id, nic ? Role::nic : Role::drive, at);
        const double width = at.w - 16;
        const std::string rate = nic ? card_rate(outline_, id) : "";
        write(box, {{at.x + 8, at.y + 16}, short_name(device, false), 12, Tone::strong, Anchor::start, true},
              width);
        const double used = text_width(short_name(device, false), 12, true);
        const std::string link = short_link(outline_, id);
        if (used + text_width(link, 11) + 8 < width)
            write(box, {{at.right() - 8, at.y + 16}, link, 11, Tone::faint, Anchor::end, false}, width);
        const std::string shortfall = short_shortfall(device);
        scene_.boxes[box].marked = !shortfall.empty();
        const std::string words = !shortfall.empty() ? shortfall
                                  : rate.empty()     ? short_model(device.model)
                                                     : rate;
        write(box,
              {{at.x + 8, at.y + 31},
               words,
               11,
               shortfall.empty() ? Tone::faint : Tone::warning,
               Anchor::start,
               false},
              width);
    }

    // All GPUs in the row of the lowest, with their texts. Below a GPU is nothing, so there is room.
    double align_gpus(double bottom) {
        double row = 0;
        for (const DeviceId id : picked_.gpus) row = std::max(row, scene_.boxes[box_of_.at(id)].at.y);
        row = std::max(row, bottom - gpu_height);
        for (const DeviceId id : picked_.gpus) {
            Box& box = scene_.boxes[box_of_.at(id)];
            for (Text& text : box.texts) text.at.y += row - box.at.y;
            box.at.y = row;
        }
        return picked_.gpus.empty() ? bottom : row + gpu_height;
    }

    void draw_lanes() {
        for (const Lane& line : lanes_) {
            const auto up = outline_.link_up(line.to);
            if (!up) continue;
            const Link& link = outline_.link(*up);
            const Rect& from = scene_.boxes[line.from].at;
            const Rect& to = scene_.boxes[box_of_.at(line.to)].at;
            Edge edge;
            edge.points = {{line.x, from.bottom()}, {line.x, line.sideways ? to.middle_y() : to.y}};
            if (line.sideways) edge.points.push_back({to.x, to.middle_y()});
            edge.ink =
                ink_of_link_up(outline_.topology(), line.to, outline_.far_end(*up, line.to), link.kind);
            edge.gb_per_s = link.gb_per_s;
            edge.width = std::min(stroke_width(link.gb_per_s), lane - 2);
            edge.dashed = !pcie_shortfall(outline_.device(line.to)).empty();
            edge.title = link_details(outline_, *up);
            scene_.edges.push_back(std::move(edge));
        }
    }

    const Outline& outline_;
    const Picked& picked_;
    Scene& scene_;
    BoxOf& box_of_;
    int panel_ = -1;
    double column_width_;
    double gap_;           // between panels
    std::size_t stacked_;  // how many bars without GPUs share a column
    std::unordered_map<DeviceId, double> widths_;
    std::vector<Lane> lanes_;
};

}  // namespace

Rect lay_out_trees(const Outline& outline, const Picked& picked, Point at, Scene& scene, BoxOf& box_of) {
    return TreeLayout(outline, picked, scene, box_of).run(at);
}

}  // namespace sidestep::topology::draw
