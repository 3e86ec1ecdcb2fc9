// Drawings: the layout as data, then what the writers make of it.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include <sidestep/drawing.hpp>

#include "topology/draw/escape.hpp"
#include "topology/draw/layout.hpp"
#include "topology/draw/text_fit.hpp"

namespace sidestep {
namespace {

using namespace topology::draw;

// A machine put together for one test. Names are made of kind and index.
class Builder {
public:
    DeviceId add(DeviceKind kind, int node = 0) {
        Device device;
        device.kind = kind;
        device.index = counts_[static_cast<std::size_t>(kind)]++;
        device.name = std::string(to_string(kind)) + ":" + std::to_string(device.index);
        device.node = node;
        parts.devices.push_back(std::move(device));
        return static_cast<DeviceId>(parts.devices.size() - 1);
    }
    void join(DeviceId a, DeviceId b, LinkKind kind = LinkKind::pcie, double rate = 63.015, int width = 16) {
        parts.links.push_back({a, b, kind, width, rate, 0.4});
    }
    DeviceId below(DeviceId above, DeviceKind kind) {
        const DeviceId id = add(kind);
        join(id, above);
        return id;
    }
    Topology build() const { return *Topology::create(parts); }

    Topology::Parts parts;

private:
    int counts_[8] = {};
};

// Whether a line between two points runs through the inside of a box.
bool runs_through(const Point& a, const Point& b, Rect box) {
    box = {box.x + 1, box.y + 1, box.w - 2, box.h - 2};
    const int steps = static_cast<int>(std::hypot(b.x - a.x, b.y - a.y)) + 1;
    for (int i = 0; i <= steps; ++i) {
        const double part = static_cast<double>(i) / steps;
        const double x = a.x + part * (b.x - a.x);
        const double y = a.y + part * (b.y - a.y);
        if (x > box.x && x < box.right() && y > box.y && y < box.bottom()) return true;
    }
    return false;
}

bool lies_in(const Scene& scene, std::size_t inner, std::size_t outer) {
    for (int at = scene.boxes[inner].inside; at >= 0; at = scene.boxes[static_cast<std::size_t>(at)].inside)
        if (static_cast<std::size_t>(at) == outer) return true;
    return false;
}

std::string name_of(const Box& box) {
    return box.title.substr(0, box.title.find('\n')) +
           (box.texts.empty() ? "" : " \"" + box.texts.front().words + "\"");
}

void check_boxes(const Scene& scene) {
    const Rect canvas{0, 0, scene.width, scene.height};
    for (std::size_t i = 0; i < scene.boxes.size(); ++i) {
        const Box& box = scene.boxes[i];
        ASSERT_GT(box.at.w, 0) << name_of(box);
        ASSERT_GT(box.at.h, 0) << name_of(box);
        EXPECT_TRUE(canvas.contains(box.at)) << name_of(box);
        if (box.inside >= 0) {
            const Box& outer = scene.boxes[static_cast<std::size_t>(box.inside)];
            EXPECT_TRUE(outer.at.contains(box.at)) << name_of(box) << " in " << name_of(outer);
        }
        for (std::size_t j = i + 1; j < scene.boxes.size(); ++j) {
            if (lies_in(scene, i, j) || lies_in(scene, j, i)) continue;
            EXPECT_FALSE(box.at.overlaps(scene.boxes[j].at))
                << name_of(box) << " and " << name_of(scene.boxes[j]);
        }
    }
}

void check_texts(const Scene& scene) {
    const Rect canvas{0, 0, scene.width, scene.height};
    for (const Box& box : scene.boxes) {
        for (std::size_t i = 0; i < box.texts.size(); ++i) {
            const Text& text = box.texts[i];
            EXPECT_GE(text.size, smallest_text) << text.words;
            EXPECT_TRUE(box.at.contains(extent(text))) << text.words << " in " << name_of(box);
            for (std::size_t j = i + 1; j < box.texts.size(); ++j)
                EXPECT_FALSE(extent(text).overlaps(extent(box.texts[j])))
                    << text.words << " and " << box.texts[j].words;
        }
    }
    for (const Text& text : scene.texts) {
        EXPECT_GE(text.size, smallest_text) << text.words;
        EXPECT_TRUE(canvas.contains(extent(text))) << text.words;
        for (const Box& box : scene.boxes)
            EXPECT_FALSE(box.at.overlaps(extent(text))) << text.words << " and " << name_of(box);
    }
}

void check_edges(const Scene& scene) {
    for (const Edge& edge : scene.edges) {
        ASSERT_GE(edge.points.size(), 2U) << edge.title;
        EXPECT_GE(edge.width, 1) << edge.title;
        for (int i = 0; edge.curve && i <= 20; ++i) {
            ASSERT_EQ(edge.points.size(), 4U) << edge.title;
            const double t = i / 20.0;
            const double s = 1 - t;
            const auto& p = edge.points;
            const double x =
                s * s * s * p[0].x + 3 * s * s * t * p[1].x + 3 * s * t * t * p[2].x + t * t * t * p[3].x;
            const double y =
                s * s * s * p[0].y + 3 * s * s * t * p[1].y + 3 * s * t * t * p[2].y + t * t * t * p[3].y;
            EXPECT_TRUE(x >= 0 && x <= scene.width && y >= 0 && y <= scene.height) << edge.title;
        }
        if (edge.curve) continue;
        for (std::size_t i = 1; i < edge.points.size(); ++i) {
            for (const Box& box : scene.boxes) {
                if (box.role == Role::panel) continue;
                EXPECT_FALSE(runs_through(edge.points[i - 1], edge.points[i], box.at))
                    << edge.title << " runs through " << name_of(box);
            }
        }
    }
}

void check(const Topology& topology, const DrawOptions& options = {}) {
    SCOPED_TRACE(topology.name());
    const Scene scene = lay_out(topology, options);
    check_boxes(scene);
    check_texts(scene);
    check_edges(scene);
}

std::size_t count_role(const Scene& scene, Role role) {
    std::size_t count = 0;
    for (const Box& box : scene.boxes) count += box.role == role && box.inside >= 0 ? 1 : 0;
    return count;
}

std::size_t count_ink(const Scene& scene, Ink ink) {
    std::size_t count = 0;
    // Edges without a rate are samples of the legend.
    for (const Edge& edge : scene.edges) count += edge.ink == ink && edge.gb_per_s > 0 ? 1 : 0;
    return count;
}

TEST(Layout, EveryModelFitsAndNothingOverlaps) {
    ASSERT_FALSE(Topology::model_names().empty());
    for (const std::string& name : Topology::model_names()) {
        check(*Topology::model(name));
        check(*Topology::model(name + "*3"), {Theme::automatic, 1});
    }
    check(*Topology::model("dgx-h100*1250"), {Theme::automatic, 700});
}

TEST(Layout, DrawsEveryDeviceOfAMachine) {
    const auto dgx = Topology::model("dgx-h100");
    const Scene scene = lay_out(*dgx, {});
    const auto count = [&](DeviceKind kind) {
        std::size_t found = 0;
        for (const Device& device : dgx->devices()) found += device.kind == kind ? 1 : 0;
        return found;
    };
    EXPECT_EQ(count_role(scene, Role::gpu), count(DeviceKind::gpu));
    EXPECT_EQ(count_role(scene, Role::nic), count(DeviceKind::nic));
    EXPECT_EQ(count_role(scene, Role::cpu), count(DeviceKind::cpu));
    EXPECT_EQ(count_role(scene, Role::nvswitch), count(DeviceKind::nvswitch));
    EXPECT_EQ(count_role(scene, Role::pcie_switch), count(DeviceKind::pcie_switch));
    EXPECT_EQ(count_role(scene, Role::host_bridge), count(DeviceKind::host_bridge));
    // Each GPU has a bundle to each NVSwitch, as wide as it is fast.
    EXPECT_EQ(count_ink(scene, Ink::nvlink), 32U);
    EXPECT_EQ(count_ink(scene, Ink::sys), 1U);
    double thin = 1000;
    double thick = 0;
    for (const Edge& edge : scene.edges) {
        if (edge.ink != Ink::nvlink || edge.gb_per_s <= 0) continue;
        EXPECT_EQ(edge.width, stroke_width(edge.gb_per_s));
        thin = std::min(thin, edge.width);
        thick = std::max(thick, edge.width);
    }
    EXPECT_GT(thick, thin) << "bundles of 5 links are wider than those of 4";
}

TEST(Layout, GpusStandInOneRowInTheirOrder) {
    for (const char* name : {"dgx-h100", "dgx-1v", "dgx-a100", "pcie-2s"}) {
        const Scene scene = lay_out(*Topology::model(name), {});
        double x = 0;
        double y = -1;
        int index = 0;
        for (int wanted = 0; wanted < 16; ++wanted) {
            for (const Box& box : scene.boxes) {
                if (box.role != Role::gpu || box.title.rfind("gpu:" + std::to_string(wanted) + "\n", 0) != 0)
                    continue;
                EXPECT_GT(box.at.x, x) << name << " " << box.title;
                if (y >= 0) {
                    EXPECT_EQ(box.at.y, y) << name << " " << box.title;
                }
                x = box.at.x;
                y = box.at.y;
                ++index;
            }
        }
        EXPECT_EQ(index, Topology::model(name)->gpu_count()) << name;
    }
}

TEST(Layout, AMeshHasItsEdgesTwiceBelowTheGpusAndAroundTheRing) {
    const auto dgx = Topology::model("dgx-1v");
    std::size_t links = 0;
    for (const Link& link : dgx->links()) links += link.kind == LinkKind::nvlink ? 1 : 0;
    const Scene scene = lay_out(*dgx, {});
    EXPECT_EQ(count_ink(scene, Ink::nvlink), 2 * links);
    EXPECT_EQ(count_role(scene, Role::disc), 8U);
}

TEST(Layout, TheMatrixHasTheClassesOfAllPairs) {
    const auto dgx = Topology::model("dgx-1v");
    const Scene scene = lay_out(*dgx, {});
    std::size_t cells = 0;
    std::size_t marked = 0;
    for (const Box& box : scene.boxes) {
        if (box.role != Role::cell) continue;
        ++cells;
        marked += box.marked ? 1 : 0;
        if (box.title.rfind("gpu:0 to gpu:3: ", 0) != 0) continue;
        EXPECT_EQ(box.texts.front().words, "NV2");
        EXPECT_EQ(box.ink, Ink::nvlink);
    }
    EXPECT_EQ(cells, 8U * (8 + 4));
    // Each GPU has NVLinks to four of the seven others; peer access over PCIe ends at the host bridge.
    EXPECT_EQ(marked, 8U * 3);
}

TEST(Layout, AClusterIsSummedUp) {
    const Scene scene = lay_out(*Topology::model("dgx-h100*128"), {Theme::automatic, 5});
    EXPECT_EQ(count_role(scene, Role::machine), 10U);
    EXPECT_EQ(count_role(scene, Role::gpu), 8U + 10 * 8);
    std::string words;
    for (const Box& box : scene.boxes) {
        for (const Text& text : box.texts) words += text.words + "\n";
        if (box.highlighted) {
            EXPECT_EQ(box.texts.front().words, "node5");
        }
    }
    EXPECT_NE(words.find("and 118 more"), std::string::npos) << words;
    EXPECT_NE(words.find("128 machines, all alike"), std::string::npos) << words;
    EXPECT_LT(scene.boxes.size() + scene.edges.size(), 1500U);
}

TEST(Layout, ARackJoinsItsTraysToTheNvswitches) {
    const Scene scene = lay_out(*Topology::model("gb200-nvl72"), {});
    EXPECT_EQ(count_role(scene, Role::machine), 18U);
    EXPECT_EQ(count_role(scene, Role::nvswitch), 18U);
    std::size_t bundles = 0;
    for (const Edge& edge : scene.edges) bundles += edge.title.find("to the NVSwitches") != std::string::npos;
    EXPECT_EQ(bundles, 18U);
}

TEST(Layout, NothingAndLittle) {
    Builder nothing;
    check(nothing.build());
    Builder gpu;
    gpu.add(DeviceKind::gpu);
    gpu.add(DeviceKind::drive);
    check(gpu.build());
    Builder only_switch;
    only_switch.add(DeviceKind::nvswitch, -1);
    only_switch.add(DeviceKind::net_switch, -1);
    check(only_switch.build());
}

TEST(Layout, ManyDevicesAreCappedAndCounted) {
    Builder b;
    for (int socket = 0; socket < 20; ++socket) {
        const DeviceId cpu = b.add(DeviceKind::cpu);
        for (int k = 0; k < 3; ++k) {
            const DeviceId bridge = b.below(cpu, DeviceKind::host_bridge);
            const DeviceId pcie_switch = b.below(bridge, DeviceKind::pcie_switch);
            for (int i = 0; i < 3; ++i) b.below(pcie_switch, DeviceKind::gpu);
            for (int i = 0; i < 5; ++i)
                b.below(pcie_switch, i % 2 == 0 ? DeviceKind::nic : DeviceKind::drive);
            b.below(bridge, DeviceKind::drive);
        }
    }
    const Topology machine = b.build();
    check(machine);
    const Scene scene = lay_out(machine, {});
    EXPECT_EQ(count_role(scene, Role::gpu), 32U);
    std::string words;
    for (const Box& box : scene.boxes)
        for (const Text& text : box.texts) words += text.words + "\n";
    EXPECT_NE(words.find("148 GPUs"), std::string::npos) << words;
    EXPECT_LT(draw_svg(machine).size(), std::size_t{2} << 20);
}

TEST(Layout, AChainOfSwitchesIsCut) {
    Builder b;
    DeviceId above = b.below(b.add(DeviceKind::cpu), DeviceKind::host_bridge);
    for (int i = 0; i < 100000; ++i) above = b.below(above, DeviceKind::pcie_switch);
    b.below(above, DeviceKind::gpu);
    const Topology machine = b.build();
    const Scene scene = lay_out(machine, {});
    EXPECT_LE(count_role(scene, Role::pcie_switch), 96U);
    EXPECT_LT(scene.height, 10000);
    EXPECT_LT(draw_dot(machine).size(), std::size_t{1} << 20);
    EXPECT_NE(draw_tree(machine).find("further devices below"), std::string::npos);
}

TEST(Layout, SaysWhatIsSlowerThanItCouldBe) {
    Builder b;
    const DeviceId bridge = b.below(b.add(DeviceKind::cpu), DeviceKind::host_bridge);
    const DeviceId pcie_switch = b.below(bridge, DeviceKind::pcie_switch);
    b.parts.devices[pcie_switch].acs_redirect = true;
    const DeviceId gpu = b.below(pcie_switch, DeviceKind::gpu);
    b.parts.devices[gpu].properties = {{"pcie_now", "gen4 x8"}, {"pcie_max", "gen4 x16"}};
    b.below(pcie_switch, DeviceKind::nic);
    const Topology machine = b.build();
    check(machine);
    const Scene scene = lay_out(machine, {});
    std::size_t dashed = 0;
    for (const Edge& edge : scene.edges) dashed += edge.dashed ? 1 : 0;
    EXPECT_EQ(dashed, 1U);
    const std::string svg = draw_svg(machine);
    EXPECT_NE(svg.find("only x8 of x16"), std::string::npos);
    EXPECT_NE(svg.find("ACS redirect"), std::string::npos);
}

TEST(TextFit, CutsWholeCharacters) {
    EXPECT_EQ(fit("gpu:0", 100, 11), "gpu:0");
    const std::string cut = fit("ääääääääääääääää", 60, 11);
    EXPECT_LE(text_width(cut, 11), 60);
    EXPECT_EQ(escape_xml(cut), cut) << "still UTF-8";
    EXPECT_NE(cut.find("…"), std::string::npos);
    EXPECT_EQ(fit("anything", 3, 11), "");
    const auto lines = wrap("one two three four five six seven", 60, 11, 3);
    EXPECT_EQ(lines.size(), 3U);
    for (const std::string& line : lines) EXPECT_LE(text_width(line, 11), 60) << line;
}

TEST(Escape, MarkupAndWhatIsNoUtf8) {
    EXPECT_EQ(escape_xml("<a b=\"c\">'&'"), "&lt;a b=&quot;c&quot;&gt;&apos;&amp;&apos;");
    EXPECT_EQ(escape_xml("ä€😀"), "ä€😀");
    EXPECT_EQ(escape_xml(std::string_view("a\0b\x01", 4)),
              "a\xef\xbf\xbd"
              "b\xef\xbf\xbd");
    EXPECT_EQ(escape_xml("\xff\xc3"), "\xef\xbf\xbd\xef\xbf\xbd");
    EXPECT_EQ(escape_xml("\xed\xa0\x80"), "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd") << "half a surrogate pair";
    EXPECT_EQ(escape_xml("\xc0\x80"), "\xef\xbf\xbd\xef\xbf\xbd") << "a zero in two bytes";
    EXPECT_EQ(escape_dot("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
}

// Whether every element is closed in its turn. The command's tests read the files with a real parser.
bool is_balanced(const std::string& xml) {
    std::vector<std::string> open;
    for (std::size_t at = xml.find('<'); at != std::string::npos; at = xml.find('<', at + 1)) {
        const std::size_t end = xml.find('>', at);
        if (end == std::string::npos) return false;
        const std::string tag = xml.substr(at + 1, end - at - 1);
        if (tag.front() == '?' || tag.back() == '/') continue;
        const std::string name =
            tag.substr(tag.front() == '/' ? 1 : 0, tag.find(' ') - (tag.front() == '/' ? 1 : 0));
        if (tag.front() != '/') {
            open.push_back(name);
        } else if (open.empty() || open.back() != name) {
            return false;
        } else {
            open.pop_back();
        }
    }
    return open.empty();
}

TEST(Svg, EveryModelStandsAlone) {
    for (const std::string& name : Topology::model_names()) {
        const std::string svg = draw_svg(*Topology::model(name));
        EXPECT_TRUE(is_balanced(svg)) << name;
        EXPECT_EQ(svg.find("http", svg.find("http") + 1), std::string::npos)
            << name << ": only the namespace";
        for (const char* never : {"<script", "url(", "href", "@import", "nan", "inf\""})
            EXPECT_EQ(svg.find(never), std::string::npos) << name << ": " << never;
        EXPECT_NE(svg.find("<title>" + name + "</title>"), std::string::npos);
    }
}

TEST(Svg, Themes) {
    const auto laptop = Topology::model("laptop");
    const std::string automatic = draw_svg(*laptop);
    const std::string light = draw_svg(*laptop, {Theme::light, 0});
    const std::string dark = draw_svg(*laptop, {Theme::dark, 0});
    EXPECT_NE(automatic.find("@media (prefers-color-scheme:dark)"), std::string::npos);
    EXPECT_EQ(light.find("@media"), std::string::npos);
    EXPECT_EQ(dark.find("@media"), std::string::npos);
    const std::string back = ".sidestep .back{fill:";
    const auto colour = [&](const std::string& svg) { return svg.substr(svg.find(back) + back.size(), 7); };
    EXPECT_EQ(colour(automatic), colour(light));
    EXPECT_NE(colour(dark), colour(light));
    EXPECT_NE(automatic.find(back + colour(dark)), std::string::npos);
}

TEST(Svg, NamesCannotBreakIt) {
    Builder b;
    const DeviceId gpu = b.below(b.below(b.add(DeviceKind::cpu), DeviceKind::host_bridge), DeviceKind::gpu);
    b.parts.name = "</svg><script>&\"'\xff";
    b.parts.devices[gpu].name = "gpu:<&\">";
    b.parts.devices[gpu].model = "]]>&lt;\x01";
    b.parts.devices[gpu].properties = {{"<p>", "</title>"}};
    b.parts.notes = {"<note/>"};
    const Topology machine = b.build();
    const std::string svg = draw_svg(machine);
    EXPECT_TRUE(is_balanced(svg)) << svg;
    EXPECT_EQ(svg.find("<script"), std::string::npos);
    EXPECT_EQ(svg.find('\x01'), std::string::npos);
    const std::string dot = draw_dot(machine);
    EXPECT_NE(dot.find("gpu:<&\\\">"), std::string::npos);
}

TEST(Dot, HasSocketsDevicesAndLinks) {
    const auto dgx = Topology::model("dgx-h100");
    const std::string dot = draw_dot(*dgx);
    EXPECT_EQ(dot.rfind("graph \"dgx-h100\" {\n", 0), 0U);
    EXPECT_NE(dot.find("subgraph cluster_0"), std::string::npos);
    EXPECT_NE(dot.find("subgraph cluster_1"), std::string::npos);
    for (const Device& device : dgx->devices())
        EXPECT_NE(dot.find("\"" + device.name + "\" [label="), std::string::npos) << device.name;
    std::size_t edges = 0;
    for (auto at = dot.find(" -- "); at != std::string::npos; at = dot.find(" -- ", at + 1)) ++edges;
    EXPECT_EQ(edges, dgx->links().size());
    EXPECT_NE(dot.find("\"gpu:0\" -- \"nvswitch:0\" [penwidth=4.6"), std::string::npos) << dot;
    EXPECT_EQ(std::count(dot.begin(), dot.end(), '{'), std::count(dot.begin(), dot.end(), '}'));
}

TEST(Dot, ACluster) {
    const std::string dot = draw_dot(*Topology::model("dgx-h100*128"));
    EXPECT_NE(dot.find("127 other machines not drawn"), std::string::npos);
    EXPECT_LT(dot.size(), std::size_t{200000});
}

}  // namespace
}  // namespace sidestep
