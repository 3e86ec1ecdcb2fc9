#include "topology/draw/style.hpp"

#include <fmt/format.h>

namespace sidestep::topology::draw {

namespace {

// A rule whose value depends on the theme.
struct Rule {
    const char* selector;
    const char* property;
    const char* light;
    const char* dark;
};

// The colours of the classes go from green and blue (near) over amber to red (far).
constexpr Rule rules[] = {
    {".back", "fill", "#f4f6f9", "#0e1217"},        {".panel", "fill", "#ffffff", "#161c24"},
    {".panel", "stroke", "#d9dfe7", "#2a3340"},     {".cpu", "fill", "#e8edf5", "#222c3a"},
    {".cpu", "stroke", "#b9c5d8", "#3d4c62"},       {".bar", "fill", "#f1f3f6", "#1e2630"},
    {".bar", "stroke", "#cfd6df", "#364251"},       {".gpu", "fill", "#26364d", "#35506f"},
    {".gpu", "stroke", "#26364d", "#5b7ba3"},       {".nvswitch", "fill", "#e9f7ec", "#14291a"},
    {".nvswitch", "stroke", "#8fcf9d", "#2f6b3e"},  {".nic", "fill", "#f3effd", "#221d33"},
    {".nic", "stroke", "#c3b3ee", "#54458a"},       {".drive", "fill", "#eef6f6", "#15282b"},
    {".drive", "stroke", "#a9cfd1", "#35636a"},     {".netswitch", "fill", "#f3effd", "#221d33"},
    {".netswitch", "stroke", "#a891e6", "#6c59ad"}, {".machine", "fill", "#f7f9fb", "#1a212b"},
    {".machine", "stroke", "#cfd6df", "#364251"},   {".here", "stroke", "#26364d", "#8fb2dd"},
    {".mark", "fill", "#d9480f", "#ff922b"},        {"text", "fill", "#2c3848", "#d5dde8"},
    {".strong", "fill", "#141d29", "#f3f6fa"},      {".faint", "fill", "#5d6b7d", "#9aa8ba"},
    {".warning", "fill", "#c2410c", "#ffa94d"},     {".ongpu", "fill", "#ffffff", "#ffffff"},
    {".ongpu2", "fill", "#c9d4e3", "#c3d1e2"},      {".e", "stroke", "#8793a3", "#77849a"},
    {".e.nvlink", "stroke", "#2f9e44", "#51cf66"},  {".e.xgmi", "stroke", "#d6336c", "#f783ac"},
    {".e.c2c", "stroke", "#0c8599", "#3bc9db"},     {".e.pix", "stroke", "#1971c2", "#4dabf7"},
    {".e.pxb", "stroke", "#1098ad", "#66d9e8"},     {".e.phb", "stroke", "#e8a100", "#ffd43b"},
    {".e.node", "stroke", "#e8590c", "#ff922b"},    {".e.sys", "stroke", "#c92a2a", "#ff8787"},
    {".e.net", "stroke", "#7048e8", "#b197fc"},     {".cell", "fill", "#edf0f4", "#222a35"},
    {".cell.nvlink", "fill", "#b9e8c2", "#1d5a2c"}, {".cell.xgmi", "fill", "#fbc9da", "#6b1f3d"},
    {".cell.c2c", "fill", "#b5e6ee", "#0f4a55"},    {".cell.pix", "fill", "#bfdcf7", "#174670"},
    {".cell.pxb", "fill", "#bdeaf0", "#11505a"},    {".cell.phb", "fill", "#fbe6a6", "#5e4a0c"},
    {".cell.node", "fill", "#fbd0b4", "#6b3411"},   {".cell.sys", "fill", "#f7c1c1", "#6a2323"},
    {".cell.net", "fill", "#d9cdfb", "#3d2f75"},
};

constexpr const char* same_in_both =
    ".sidestep text{font-family:Inter,\"Segoe UI\",Roboto,\"Helvetica Neue\",Arial,\"Liberation Sans\","
    "\"DejaVu Sans\",sans-serif}\n"
    ".sidestep .bold{font-weight:600}\n"
    ".sidestep .middle{text-anchor:middle}\n"
    ".sidestep .end{text-anchor:end}\n"
    ".sidestep .panel,.sidestep .cpu,.sidestep .bar,.sidestep .gpu,.sidestep .nvswitch,.sidestep .nic,"
    ".sidestep .drive,.sidestep .netswitch,.sidestep .machine{stroke-width:1}\n"
    ".sidestep .machine.here{stroke-width:2}\n"
    ".sidestep .cell{stroke:none}\n"
    ".sidestep .e{fill:none;stroke-linejoin:round}\n"
    ".sidestep .curve{stroke-opacity:.6}\n"
    ".sidestep .dashed{stroke-dasharray:5 4}\n"
    ".sidestep .e:hover{stroke-opacity:1}\n";

std::string colours(bool dark) {
    std::string text;
    for (const Rule& rule : rules)
        text += fmt::format(".sidestep {}{{{}:{}}}\n", rule.selector, rule.property,
                            dark ? rule.dark : rule.light);
    return text;
}

}  // namespace

std::string style_sheet(Theme theme) {
    std::string text = colours(theme == Theme::dark) + same_in_both;
    if (theme == Theme::automatic)
        text += fmt::format("@media (prefers-color-scheme:dark){{\n{}}}\n", colours(true));
    return text;
}

const char* class_of(Role role) {
    switch (role) {
        case Role::panel:
            return "panel";
        case Role::cpu:
            return "cpu";
        case Role::host_bridge:
        case Role::pcie_switch:
            return "bar";
        case Role::gpu:
        case Role::disc:
            return "gpu";
        case Role::nvswitch:
            return "nvswitch";
        case Role::nic:
            return "nic";
        case Role::drive:
            return "drive";
        case Role::net_switch:
            return "netswitch";
        case Role::machine:
            return "machine";
        case Role::cell:
        case Role::swatch:
            return "cell";
    }
    return "";
}

const char* class_of(Ink ink) {
    switch (ink) {
        case Ink::nvlink:
            return "nvlink";
        case Ink::xgmi:
            return "xgmi";
        case Ink::c2c:
            return "c2c";
        case Ink::pix:
            return "pix";
        case Ink::pxb:
            return "pxb";
        case Ink::phb:
            return "phb";
        case Ink::node:
            return "node";
        case Ink::sys:
            return "sys";
        case Ink::net:
            return "net";
        case Ink::none:
            break;
    }
    return "";
}

const char* class_of(Tone tone) {
    switch (tone) {
        case Tone::normal:
            return "";
        case Tone::strong:
            return "strong";
        case Tone::faint:
            return "faint";
        case Tone::warning:
            return "warning";
        case Tone::on_gpu:
            return "ongpu";
        case Tone::faint_on_gpu:
            return "ongpu2";
    }
    return "";
}

}  // namespace sidestep::topology::draw
