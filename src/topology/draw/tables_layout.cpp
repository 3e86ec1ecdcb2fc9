#include "topology/draw/tables_layout.hpp"

#include <fmt/format.h>

#include <cmath>
#include <map>

#include "topology/draw/details.hpp"
#include "topology/draw/fabric_layout.hpp"
#include "topology/draw/text_fit.hpp"

namespace sidestep::topology::draw {

namespace {

constexpr double table_padding = 16;
constexpr double heading_height = 26;
constexpr double cell_width = 44;
constexpr double cell_height = 24;
constexpr double cell_gap = 2;
constexpr double row_head_width = 54;
constexpr double between_groups = 12;
constexpr std::size_t max_matrix_gpus = 16;
constexpr std::size_t max_matrix_cards = 14;

std::size_t add_panel(Point at, const char* heading, Scene& scene) {
    Box panel;
    panel.at = {at.x, at.y, 0, 0};
    panel.texts.push_back(
        {{at.x + table_padding, at.y + table_padding + 11}, heading, 13, Tone::strong, Anchor::start, true});
    return scene.add(std::move(panel));
}

// Column heads: "0", "1" for GPUs, the names of cards.
struct TableColumn {
    DeviceId id = 0;
    std::string head;
    double x = 0;
    double w = 0;
};

std::vector<TableColumn> columns_of(const Outline& outline, const Picked& picked, double x) {
    std::vector<TableColumn> columns;
    for (const DeviceId gpu : picked.gpus) {
        // Of a cluster the number in its machine, as the rows have it.
        const std::string_view name = local_name(outline.device(gpu));
        columns.push_back({gpu, std::string(name.substr(name.find(':') + 1)), x, cell_width});
        x += cell_width + cell_gap;
    }
    x += between_groups;
    std::vector<DeviceId> cards;
    for (const DeviceKind kind : {DeviceKind::nic, DeviceKind::drive}) {
        std::vector<DeviceId> found;
        for (const DeviceId id : outline.of(kind, picked.node))
            if (picked.has(id)) found.push_back(id);
        // All of a kind or none: half of them would look like all.
        if (cards.size() + found.size() <= max_matrix_cards)
            cards.insert(cards.end(), found.begin(), found.end());
    }
    for (const DeviceId card : cards) {
        std::string head = fit(short_name(outline.device(card), false), 90, 11);
        const double w = std::max(cell_width, text_width(head, 11) + 6);
        columns.push_back({card, std::move(head), x, w});
        x += w + cell_gap;
    }
    return columns;
}

}  // namespace

Rect add_matrix(const Outline& outline, const Picked& picked, Point at, Scene& scene) {
    if (picked.gpus.empty() || picked.gpus.size() > max_matrix_gpus) return {at.x, at.y, 0, 0};
    const auto columns = columns_of(outline, picked, at.x + table_padding + row_head_width);
    if (columns.size() < 2) return {at.x, at.y, 0, 0};
    const std::size_t panel = add_panel(at, "Path classes", scene);
    double y = at.y + table_padding + heading_height + 14;
    for (const TableColumn& column : columns)
        scene.boxes[panel].texts.push_back(
            {{column.x + column.w / 2, y - 5}, column.head, 11, Tone::faint, Anchor::middle, false});
    const Topology& topology = outline.topology();
    for (const DeviceId gpu : picked.gpus) {
        const Device& from = outline.device(gpu);
        scene.boxes[panel].texts.push_back({{at.x + table_padding, y + 16},
                                            fit(local_name(from), row_head_width - 4, 11),
                                            11,
                                            Tone::faint,
                                            Anchor::start,
                                            false});
        for (const TableColumn& column : columns) {
            const Device& to = outline.device(column.id);
            const PairClass pair = topology.pair_class(gpu, column.id);
            Box cell;
            cell.at = {column.x, y, column.w, cell_height};
            cell.role = Role::cell;
            cell.ink = ink_of(pair.kind);
            cell.inside = static_cast<int>(panel);
            cell.title = pair_details(outline, gpu, column.id);
            cell.marked = to.kind == DeviceKind::gpu && !topology.peer_access(from.index, to.index).allowed;
            const std::string words = pair.kind == PathClass::self ? "" : to_string(pair);
            if (!words.empty())
                cell.texts.push_back({{cell.at.middle_x(), y + 16},
                                      fit(words, column.w, 11),
                                      11,
                                      Tone::strong,
                                      Anchor::middle,
                                      false});
            scene.add(std::move(cell));
        }
        y += cell_height + cell_gap;
    }
    Rect& room = scene.boxes[panel].at;
    room.w = columns.back().x + columns.back().w + table_padding - at.x;
    room.h = y - cell_gap + table_padding - at.y;
    return room;
}

Rect add_ring(const Outline& outline, const Picked& picked, Point at, Scene& scene) {
    const auto links = direct_links(outline, picked);
    const std::size_t count = picked.gpus.size();
    if (links.empty() || count < 3 || count > max_matrix_gpus) return {at.x, at.y, 0, 0};
    const double disc = 32;
    const double radius = std::max(96.0, static_cast<double>(count) * (disc + 10) / 6.28);
    const std::size_t panel = add_panel(at, "GPU mesh", scene);
    const Point middle{at.x + table_padding + radius + disc / 2,
                       at.y + table_padding + heading_height + radius + disc / 2};
    std::map<DeviceId, Point> place;
    // The first half from top to bottom at the left, the second at the right: partners face each other.
    const std::size_t half = (count + 1) / 2;
    for (std::size_t i = 0; i < count; ++i) {
        const bool left = i < half;
        const auto step = static_cast<double>(left ? i : i - half);
        const auto steps = static_cast<double>(left ? half : count - half);
        const double angle = 3.14159265 * (step + 0.5) / steps;
        const Point spot{middle.x + (left ? -1 : 1) * radius * std::sin(angle),
                         middle.y - radius * std::cos(angle)};
        place[picked.gpus[i]] = spot;
        Box box;
        box.at = {spot.x - disc / 2, spot.y - disc / 2, disc, disc};
        box.role = Role::disc;
        box.inside = static_cast<int>(panel);
        box.title = outline.device(picked.gpus[i]).name;
        box.texts.push_back({{spot.x, spot.y + 4},
                             std::to_string(outline.device(picked.gpus[i]).index),
                             12,
                             Tone::on_gpu,
                             Anchor::middle,
                             true});
        scene.add(std::move(box));
    }
    for (const std::uint32_t position : links) {
        const Link& link = outline.link(position);
        const Point a = place[link.a];
        const Point b = place[link.b];
        const auto inwards = [&](const Point& p) {
            return Point{p.x + 0.2 * (middle.x - p.x), p.y + 0.2 * (middle.y - p.y)};
        };
        Edge edge;
        edge.points = {a, inwards(a), inwards(b), b};
        edge.curve = true;
        edge.ink = ink_of_link(link.kind);
        edge.gb_per_s = link.gb_per_s;
        edge.width = stroke_width(link.gb_per_s);
        edge.title = link_details(outline, position);
        scene.edges.push_back(std::move(edge));
    }
    Rect& room = scene.boxes[panel].at;
    room.w = 2 * (table_padding + radius) + disc;
    room.h = 2 * table_padding + heading_height + 2 * radius + disc;
    return room;
}

namespace {

constexpr double line_height = 22;
constexpr double samples_width = 64;
constexpr double name_width = 52;

// What the drawing has in a colour: links, cells of the matrix.
struct Used {
    bool link = false;
    bool cell = false;
};

std::map<Ink, Used> inks_of(const Scene& scene) {
    std::map<Ink, Used> inks;
    for (const Edge& edge : scene.edges) inks[edge.ink].link = true;
    for (const Box& box : scene.boxes) inks[box.ink].cell = true;
    inks.erase(Ink::none);
    return inks;
}

// Rates worth a sample line: round ones between the slowest and the fastest edge.
std::vector<double> sample_rates(const Scene& scene) {
    double min = 1e9;
    double max = 0;
    for (const Edge& edge : scene.edges) {
        if (edge.gb_per_s <= 0) continue;
        min = std::min(min, edge.gb_per_s);
        max = std::max(max, edge.gb_per_s);
    }
    std::vector<double> rates;
    for (const double rate : {1.0, 8.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0})
        if (rate >= min / 2.1 && rate <= max * 1.1) rates.push_back(rate);
    return rates;
}

}  // namespace

namespace {

class Legend {
public:
    Legend(Point at, Scene& scene) : scene_(scene), at_(at), panel_(add_panel(at, "Legend", scene)) {
        y_ = at.y + table_padding + heading_height;
    }

    // A line with the samples of a colour.
    void colour(Ink ink, Used used) {
        if (used.cell) swatch(ink, false);
        if (used.link) {
            Edge sample;
            sample.points = {{at_.x + table_padding + 30, y_ + 10}, {at_.x + table_padding + 52, y_ + 10}};
            sample.width = 3.2;
            sample.ink = ink;
            scene_.edges.push_back(std::move(sample));
        }
        line(ink_name(ink), ink_words(ink));
    }

    void mark(const std::string& words) {
        swatch(Ink::none, true);
        line("", words);
    }

    void scale(const std::vector<double>& rates) {
        y_ += 10;
        double x = at_.x + table_padding;
        for (const double rate : rates) {
            Edge sample;
            sample.points = {{x + 6, y_ + 8}, {x + 50, y_ + 8}};
            sample.width = stroke_width(rate);
            sample.title = format_rate(rate);
            scene_.edges.push_back(std::move(sample));
            scene_.boxes[panel_].texts.push_back({{x + 28, y_ + 28},
                                                  fmt::format("{:.0f} GB/s", rate),
                                                  11,
                                                  Tone::faint,
                                                  Anchor::middle,
                                                  false});
            x += 72;
        }
        width_ = std::max(width_, x + table_padding - 10 - at_.x);
        y_ += rates.empty() ? 0 : 32;
    }

    Rect close() {
        Rect& room = scene_.boxes[panel_].at;
        room.w = width_;
        room.h = y_ + table_padding - at_.y;
        return room;
    }

private:
    void swatch(Ink ink, bool marked) {
        Box box;
        box.at = {at_.x + table_padding, y_ + 3, 22, 14};
        box.role = Role::swatch;
        box.ink = ink;
        box.marked = marked;
        box.inside = static_cast<int>(panel_);
        scene_.add(std::move(box));
    }

    void line(const char* name, const std::string& words) {
        const double x = at_.x + table_padding + samples_width;
        const double left = *name == 0 ? x : x + name_width;
        auto& texts = scene_.boxes[panel_].texts;
        if (*name != 0) texts.push_back({{x, y_ + 14}, name, 12, Tone::strong, Anchor::start, true});
        texts.push_back({{left, y_ + 14}, words, 11, Tone::faint, Anchor::start, false});
        width_ = std::max(width_, left + text_width(words, 11) + table_padding - at_.x);
        y_ += line_height;
    }

    Scene& scene_;
    Point at_;
    std::size_t panel_;
    double y_ = 0;
    double width_ = 240;
};

}  // namespace

Rect add_legend(Point at, Scene& scene) {
    const auto inks = inks_of(scene);
    const auto rates = sample_rates(scene);
    const bool dashed =
        std::any_of(scene.edges.begin(), scene.edges.end(), [](const Edge& edge) { return edge.dashed; });
    const auto marked = [&](Role role) {
        return std::any_of(scene.boxes.begin(), scene.boxes.end(),
                           [&](const Box& box) { return box.marked && box.role == role; });
    };
    const bool refused = marked(Role::cell);
    const bool redirects = marked(Role::pcie_switch);
    Legend legend(at, scene);
    for (const auto& [ink, used] : inks) legend.colour(ink, used);
    if (refused) legend.mark("at a pair: no peer access");
    if (dashed) legend.mark("at a device, with a dashed line: its link came up slower than it could");
    if (redirects) legend.mark("at a switch: access control (ACS) sends traffic to the host bridge");
    legend.scale(rates);
    return legend.close();
}

Rect add_notes(const std::vector<std::string>& notes, Point at, double width, Scene& scene) {
    constexpr std::size_t max_notes = 12;
    constexpr std::size_t longest = 600;
    if (notes.empty()) return {at.x, at.y, 0, 0};
    const std::size_t panel = add_panel(at, "Notes", scene);
    double y = at.y + table_padding + heading_height;
    const auto write = [&](const std::string& words) {
        for (const std::string& part : wrap(words, width - 2 * table_padding, 12, 3)) {
            scene.boxes[panel].texts.push_back(
                {{at.x + table_padding, y + 12}, part, 12, Tone::normal, Anchor::start, false});
            y += 18;
        }
        y += 4;
    };
    for (std::size_t i = 0; i < std::min(notes.size(), max_notes); ++i) write(notes[i].substr(0, longest));
    if (notes.size() > max_notes) write(fmt::format("and {} more", notes.size() - max_notes));
    Rect& room = scene.boxes[panel].at;
    room.w = width;
    room.h = y + table_padding - 4 - at.y;
    return room;
}

}  // namespace sidestep::topology::draw
