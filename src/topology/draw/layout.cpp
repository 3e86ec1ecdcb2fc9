#include "topology/draw/layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "topology/draw/cluster_layout.hpp"
#include "topology/draw/fabric_layout.hpp"
#include "topology/draw/tables_layout.hpp"
#include "topology/draw/text_fit.hpp"
#include "topology/text_parts.hpp"

namespace sidestep::topology::draw {

namespace {

constexpr double page_margin = 28;
constexpr double head_height = 72;
constexpr double between = 22;
constexpr double narrowest = 880;

void move(Scene& scene, double dx) {
    for (Box& box : scene.boxes) {
        box.at.x += dx;
        for (Text& text : box.texts) text.at.x += dx;
    }
    for (Edge& edge : scene.edges)
        for (Point& point : edge.points) point.x += dx;
    for (Text& text : scene.texts) text.at.x += dx;
}

// "8 x H100 80GB HBM3, 10 network cards, 2 NUMA nodes": what the machine has.
std::string summary(const Outline& outline, const Picked& picked) {
    std::string words;
    const auto add = [&words](const std::string& part) {
        if (!part.empty()) words += (words.empty() ? "" : " · ") + part;
    };
    const auto gpus = outline.of(DeviceKind::gpu, picked.node);
    if (!gpus.empty()) {
        const std::string& model = outline.device(gpus.front()).model;
        const bool same = std::all_of(gpus.begin(), gpus.end(),
                                      [&](DeviceId id) { return outline.device(id).model == model; });
        add(same && !model.empty() ? fmt::format("{} × {}", gpus.size(), model)
                                   : count_words(gpus.size(), DeviceKind::gpu));
    }
    for (const DeviceKind kind : {DeviceKind::nic, DeviceKind::drive, DeviceKind::cpu}) {
        const std::size_t count = outline.of(kind, picked.node).size();
        if (count > 0) add(count_words(count, kind));
    }
    const std::size_t machines = outline.nodes().size();
    if (machines > 1) {
        words = fmt::format("node{} of {} machines: ", picked.node, machines) + words;
        add(count_words(static_cast<std::size_t>(outline.topology().gpu_count()), DeviceKind::gpu) +
            " in all");
    }
    if (outline.topology().emulated()) add(where_from(outline.topology()));
    return words;
}

void write_head(const Outline& outline, const Picked& picked, Scene& scene) {
    scene.title = outline.topology().name().empty() ? "machine" : outline.topology().name();
    scene.description = summary(outline, picked);
    const double width = scene.width - 2 * page_margin;
    scene.texts.push_back({{page_margin, page_margin + 20},
                           fit(scene.title, width, 22, true),
                           22,
                           Tone::strong,
                           Anchor::start,
                           true});
    scene.texts.push_back({{page_margin, page_margin + 42},
                           fit(scene.description, width, 13),
                           13,
                           Tone::faint,
                           Anchor::start,
                           false});
}

// Puts panels into rows from left to right. Panels of a row become equally high, and the last one of each row
// as wide as there is room.
class Rows {
public:
    Rows(double left, double right, double y, Scene& scene)
        : scene_(scene), left_(left), right_(right), x_(left), top_(y), bottom_(y) {}

    Point next() const { return {x_, top_}; }

    // A panel that was added at next(), and all that was added with it.
    void added(std::size_t panel, std::size_t first_edge, Rect room) {
        if (room.w <= 0) return;
        if (x_ > left_ && room.right() > right_) {
            close();
            shift(panel, first_edge, left_ - room.x, top_ - room.y);
            room.x = left_;
            room.y = top_;
        }
        row_.push_back(panel);
        x_ = room.right() + between;
        bottom_ = std::max(bottom_, room.bottom());
    }

    // Ends the row and returns its lower edge.
    double close() {
        if (row_.empty()) return bottom_;
        for (const std::size_t panel : row_) scene_.boxes[panel].at.h = bottom_ - top_;
        Rect& last = scene_.boxes[row_.back()].at;
        last.w = std::max(last.w, right_ - last.x);
        row_.clear();
        x_ = left_;
        top_ = bottom_ + between;
        return bottom_;
    }

private:
    void shift(std::size_t first_box, std::size_t first_edge, double dx, double dy) {
        for (std::size_t i = first_box; i < scene_.boxes.size(); ++i) {
            scene_.boxes[i].at.x += dx;
            scene_.boxes[i].at.y += dy;
            for (Text& text : scene_.boxes[i].texts) text.at = {text.at.x + dx, text.at.y + dy};
        }
        for (std::size_t i = first_edge; i < scene_.edges.size(); ++i)
            for (Point& point : scene_.edges[i].points) point = {point.x + dx, point.y + dy};
    }

    Scene& scene_;
    double left_;
    double right_;
    double x_;
    double top_;
    double bottom_;
    std::vector<std::size_t> row_;
};

// Matrix, ring and legend. Returns the lower edge.
double add_tables(const Outline& outline, const Picked& picked, double y, double right, Scene& scene) {
    Rows rows(page_margin, right, y, scene);
    const auto add = [&](const auto& table) {
        const std::size_t boxes = scene.boxes.size();
        const std::size_t edges = scene.edges.size();
        rows.added(boxes, edges, table(rows.next()));
    };
    add([&](Point at) { return add_matrix(outline, picked, at, scene); });
    add([&](Point at) { return add_ring(outline, picked, at, scene); });
    add([&](Point at) { return add_legend(at, scene); });
    return rows.close();
}

}  // namespace

Scene lay_out(const Topology& topology, const DrawOptions& options) {
    const Outline outline(topology);
    const Picked picked = pick(outline, options.node);
    Scene scene;
    BoxOf box_of;
    const double top = page_margin + head_height + room_above_sockets(outline, picked);
    Rect taken = lay_out_trees(outline, picked, {page_margin, top}, scene, box_of);
    const double wanted = std::max(narrowest, taken.w + 2 * page_margin);
    // A small machine stands in the middle; what lies below it takes the whole width.
    move(scene, (wanted - 2 * page_margin - taken.w) / 2);
    taken.x = page_margin;
    taken.w = wanted - 2 * page_margin;
    draw_socket_links(outline, picked, scene, box_of);
    const Rect fabric = lay_out_fabric(outline, picked, taken, scene, box_of);
    const Rect cluster =
        lay_out_cluster(outline, picked, {taken.x, taken.y, taken.w, fabric.bottom() - taken.y}, scene);
    double bottom = add_tables(outline, picked, cluster.bottom() + between, wanted - page_margin, scene);
    double right = wanted - page_margin;
    for (const Box& box : scene.boxes) right = std::max(right, box.at.right());
    scene.width = std::ceil(right + page_margin);
    std::vector<std::string> notes = topology.notes();
    if (const std::string words = left_out_words(picked); !words.empty()) notes.push_back(words);
    const Rect noted = add_notes(notes, {page_margin, bottom + between}, right - page_margin, scene);
    if (noted.h > 0) bottom = noted.bottom();
    scene.height = std::ceil(bottom + page_margin);
    write_head(outline, picked, scene);
    return scene;
}

}  // namespace sidestep::topology::draw
