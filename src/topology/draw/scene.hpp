// A drawing as data: boxes, edges and words with their places. Layout makes it, the SVG writer prints it.
//
// Lengths are pixels at natural size, y grows downwards.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include <sidestep/topology.hpp>

namespace sidestep::topology::draw {

struct Point {
    double x = 0;
    double y = 0;
};

struct Rect {
    double x = 0;
    double y = 0;
    double w = 0;
    double h = 0;

    double right() const { return x + w; }
    double bottom() const { return y + h; }
    double middle_x() const { return x + w / 2; }
    double middle_y() const { return y + h / 2; }
    bool contains(const Rect& other) const {
        return other.x >= x && other.y >= y && other.right() <= right() && other.bottom() <= bottom();
    }
    bool overlaps(const Rect& other) const {
        return other.x < right() && x < other.right() && other.y < bottom() && y < other.bottom();
    }
};

// No text is smaller.
constexpr double smallest_text = 11;

enum class Tone { normal, strong, faint, warning, on_gpu, faint_on_gpu };
enum class Anchor { start, middle, end };

struct Text {
    Point at;  // where the base line starts, has its middle or ends
    std::string words;
    double size = smallest_text;
    Tone tone = Tone::normal;
    Anchor anchor = Anchor::start;
    bool bold = false;
};

// What an edge, a cell or a swatch stands for: the classes, and C2C, which has none of its own.
enum class Ink { nvlink, xgmi, c2c, pix, pxb, phb, node, sys, net, none };

enum class Role {
    panel,  // a frame around others
    cpu,
    host_bridge,
    pcie_switch,
    gpu,
    nvswitch,
    nic,
    drive,
    net_switch,
    machine,  // one machine of a cluster, as a whole
    cell,     // of the matrix
    swatch,   // of the legend
    disc,     // a GPU of the ring
};

struct Box {
    Rect at;
    Role role = Role::panel;
    std::string title;  // what a pointer over it shows
    std::vector<Text> texts;
    Ink ink = Ink::none;       // of cells and swatches
    bool marked = false;       // a corner says that something is off
    bool highlighted = false;  // the machine that is drawn in full
    // The box it lies in; -1 for the canvas. Boxes that do not lie in each other never overlap.
    int inside = -1;
};

struct Edge {
    std::vector<Point> points;
    bool curve = false;  // four points of a cubic Bezier curve; else a line with rounded corners
    Ink ink = Ink::none;
    double width = 1;
    double gb_per_s = 0;
    bool dashed = false;  // less than it could be
    std::string title;
};

struct Scene {
    double width = 0;
    double height = 0;
    std::string title;
    std::string description;
    std::vector<Box> boxes;
    std::vector<Edge> edges;
    std::vector<Text> texts;  // outside of boxes, or across several

    std::size_t add(Box box) {
        boxes.push_back(std::move(box));
        return boxes.size() - 1;
    }
};

// How wide an edge of that rate is drawn: as the square root, so that 8 GB/s and 900 GB/s both can be seen.
double stroke_width(double gb_per_s);
Ink ink_of(PathClass kind);
// "NVLink", "PIX", ...: as the legend calls it.
const char* ink_name(Ink ink);
const char* ink_words(Ink ink);

// The colour of the link from a device up to its parent: the class of a path that turns around there.
Ink ink_of_link_up(const Topology& topology, DeviceId below, DeviceId above, LinkKind kind);
Ink ink_of_link(LinkKind kind);

}  // namespace sidestep::topology::draw
