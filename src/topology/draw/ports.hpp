// Where edges leave and reach boxes.
#pragma once

#include <cstddef>
#include <map>
#include <vector>

#include "topology/draw/scene.hpp"
#include "topology/outline.hpp"

namespace sidestep::topology::draw {

enum class Side { top, bottom };

// Gives the ends of edges places along the sides of boxes, next to each other, so that edges that go left
// leave at the left.
class Ports {
public:
    // Asks for a place at `side` of a box, for the first point of an edge or its last; `order` sorts the
    // places of one side from left to right. All are positions in the scene.
    void ask(std::size_t edge, bool last_point, std::size_t box, Side side, double order);
    void give(Scene& scene) const;

private:
    struct Ask {
        double order = 0;
        std::size_t edge = 0;
        bool last_point = false;
    };
    std::map<std::pair<std::size_t, Side>, std::vector<Ask>> wanted_;
};

// An edge for a link, a curve whose two ends have no place yet.
Edge curve_of(const Outline& outline, std::uint32_t position);

// Makes a curve of an edge with two points: it leaves and arrives upright, `reach` being how far the control
// points lie below the first end, and above or below the second.
void bend(Edge& edge, double reach);

}  // namespace sidestep::topology::draw
