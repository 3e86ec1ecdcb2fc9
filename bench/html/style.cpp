// The page's style sheet. Fonts are the system's, and nothing is loaded.
#include <fmt/format.h>

#include "bench/html/parts.hpp"

namespace sidestep::bench::html {

namespace {

// Heat maps: h0 to h6 run from orange (far below the limit) over pale to blue (at the limit), which people
// who do not tell red from green see too; q0 to q6 are one hue, for values without a limit. tests/page checks
// that the words on every colour keep a contrast of 4.5.
constexpr const char* light = R"(color-scheme:light;
--page:#f7f8fa;--card:#ffffff;--ink:#18212d;--soft:#566374;--line:#dce1e8;--grid:#e6eaf0;--link:#0b5cad;
--good:#17713f;--bad:#b3261e;--track:#e3e7ed;--hint:#fff6e0;
--h0:#b3540a;--h0t:#ffffff;--h1:#e9913a;--h1t:#18212d;--h2:#f7bf83;--h2t:#18212d;--h3:#fce3c4;--h3t:#18212d;
--h4:#dbe9f5;--h4t:#18212d;--h5:#aacfee;--h5t:#18212d;--h6:#72b0e2;--h6t:#101822;
--q0:#eef4fa;--q0t:#18212d;--q1:#dbe9f5;--q1t:#18212d;--q2:#c2dbf0;--q2t:#18212d;--q3:#a4caeb;--q3t:#18212d;
--q4:#83b7e3;--q4t:#18212d;--q5:#3277b6;--q5t:#ffffff;--q6:#1f5c96;--q6t:#ffffff;
--none:#eef0f3;--nonet:#566374;
--c0:#0b62b8;--c1:#d06a00;--c2:#0a8a6a;--c3:#8a4fc7;--c4:#b8336a;--c5:#6b7280;)";

constexpr const char* dark = R"(color-scheme:dark;
--page:#10151c;--card:#171e27;--ink:#e3e9f1;--soft:#9aa7b8;--line:#2b3543;--grid:#232c38;--link:#7db8f5;
--good:#5fd08f;--bad:#ff8a80;--track:#2a3340;--hint:#33290f;
--h0:#f0953f;--h0t:#10151c;--h1:#bf6d20;--h1t:#0b0f14;--h2:#85501d;--h2t:#ffffff;--h3:#54391e;--h3t:#ffffff;
--h4:#22384d;--h4t:#ffffff;--h5:#265a86;--h5t:#ffffff;--h6:#2d73b0;--h6t:#ffffff;
--q0:#1b2531;--q0t:#ffffff;--q1:#1e3145;--q1t:#ffffff;--q2:#22405d;--q2t:#ffffff;--q3:#265075;--q3t:#ffffff;
--q4:#2a618f;--q4t:#ffffff;--q5:#2d73b0;--q5t:#ffffff;--q6:#7db8f5;--q6t:#10151c;
--none:#1e2630;--nonet:#9aa7b8;
--c0:#5aa9f2;--c1:#f2a13c;--c2:#3fc79f;--c3:#bb92f0;--c4:#f07ba5;--c5:#a3adba;)";

constexpr const char* frame = R"(
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,Inter,
"Helvetica Neue",Arial,"Liberation Sans",sans-serif;font-variant-numeric:tabular-nums;-webkit-text-size-adjust:100%}
main{max-width:1200px;margin:0 auto;padding:40px 28px 64px}
header{position:relative;padding-right:170px}
h1{font-size:30px;line-height:1.2;font-weight:650;letter-spacing:-.015em;margin:0 0 18px;overflow-wrap:anywhere}
h2{font-size:20px;line-height:1.3;font-weight:650;letter-spacing:-.01em;margin:0 0 4px}
h3{font-size:15px;font-weight:650;margin:28px 0 6px}
code,.code{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"Liberation Mono","DejaVu Sans Mono",monospace;
font-size:.92em;overflow-wrap:anywhere}
a{color:var(--link);text-decoration:none}
a:hover{text-decoration:underline}
section{margin-top:36px;padding-top:28px;border-top:1px solid var(--line)}
.over{margin:0 0 4px;color:var(--soft);font-size:13px;letter-spacing:.04em}
.lead{margin:0 0 18px;color:var(--soft)}
.note,.lead{max-width:80ch}
.note{margin:4px 0 10px;color:var(--soft);font-size:14px}
.soft{color:var(--soft)}
.good{color:var(--good)}
.bad{color:var(--bad)}
.failure{color:var(--bad);margin:4px 0 14px}
.caution{background:var(--hint);border-left:3px solid var(--c1);padding:8px 14px;margin:18px 0 0}
button{font:inherit;font-size:13px;color:var(--ink);background:var(--card);border:1px solid var(--line);border-radius:6px;
padding:5px 11px;cursor:pointer}
button:hover{border-color:var(--soft)}
:focus-visible{outline:2px solid var(--link);outline-offset:2px}
#theme{position:absolute;top:0;right:0}
.tools button{margin-right:8px}
.facts{display:flex;flex-wrap:wrap;gap:10px 32px;margin:0}
.facts dt{font-size:12px;color:var(--soft)}
.facts dd{margin:0;font-size:14px;overflow-wrap:anywhere}
.facts div:has(.code){flex-basis:100%}
.tiles{display:flex;flex-wrap:wrap;gap:14px 36px;list-style:none;padding:0;margin:14px 0 8px}
.tiles li{font-size:13px;color:var(--soft)}
.tiles b{display:block;font-size:28px;line-height:1.2;font-weight:600;color:var(--ink);letter-spacing:-.02em}
.tiles b.good{color:var(--good)}
.tiles b.bad{color:var(--bad)}
.scroll{overflow-x:auto}
.drawing{margin-top:16px}
.drawing>svg{display:block;max-width:100%;min-width:720px;height:auto;margin:0 auto}
details{margin-top:14px}
summary{cursor:pointer;color:var(--link);font-size:14px;width:fit-content}
details[open]>summary{margin-bottom:10px}
footer{margin-top:44px;padding-top:14px;border-top:1px solid var(--line);font-size:13px;color:var(--soft)}
[hidden]{display:none!important}
)";

constexpr const char* tables = R"(
table{border-collapse:collapse}
.list{font-size:14px}
.list th,.list td{padding:7px 22px 7px 0;text-align:left;vertical-align:top;border-bottom:1px solid var(--grid)}
.list th:last-child,.list td:last-child{padding-right:0}
.list thead th{font-size:12px;font-weight:500;color:var(--soft);vertical-align:bottom;white-space:nowrap;
border-bottom-color:var(--line)}
.list tbody th{font-weight:500;min-width:150px}
.list td:not(.n)>small{min-width:10em}
.list .s,.list .good,.list .bad{white-space:nowrap}
.list .n{text-align:right;white-space:nowrap}
.list small{display:block;color:var(--soft);font-size:12px;font-weight:400;white-space:normal}
.cases td:nth-child(2){color:var(--soft)}
.cases td:nth-child(3){min-width:6em}
.sortable{font-size:13px;width:100%}
.sortable th,.sortable td{padding-right:14px}
.sortable button{all:unset;cursor:pointer;white-space:nowrap}
.sortable button:focus-visible{outline:2px solid var(--link)}
.sortable th[aria-sort=ascending] button::after{content:" ↑"}
.sortable th[aria-sort=descending] button::after{content:" ↓"}
.share{display:inline-flex;align-items:center;gap:10px;white-space:nowrap}
.sharebar{width:120px;height:8px;border-radius:4px;overflow:hidden;flex:none}
.sharebar .track{fill:var(--track)}
.sharebar .fill{fill:var(--h6)}
.sharebar .h0{fill:var(--h0)}.sharebar .h1{fill:var(--h1)}.sharebar .h2,.sharebar .h3{fill:var(--h2)}
.peerline{display:block;color:var(--soft);font-size:13px}
.peerline b{color:var(--ink);font-weight:500;white-space:nowrap}
figure{margin:0;min-width:0}
figcaption{font-size:14px;font-weight:600;margin-bottom:8px;overflow-wrap:anywhere}
.matrices{display:flex;flex-wrap:wrap;gap:28px 56px;margin:8px 0 12px;align-items:flex-start}
.matrix{max-width:100%}
.heat{border-collapse:separate;border-spacing:2px;font-size:14px;margin:-2px}
.heat th{font-size:12px;font-weight:500;color:var(--soft);padding:3px 8px;white-space:nowrap}
.heat th[scope=row]{text-align:right}
.heat .corner{font-weight:400;text-align:right}
.heat td{min-width:74px;padding:7px 8px;text-align:center;border-radius:4px;background:var(--none);color:var(--nonet)}
.heat td small{display:block;font-size:11px;line-height:1.25}
.heat .hole{background:none}
.heat .failed{box-shadow:inset 0 0 0 2px var(--bad)}
.heat td[data-t]{cursor:default}
.heat td.at{outline:2px solid var(--ink);outline-offset:-1px}
.scale{display:flex;flex-wrap:wrap;align-items:center;gap:3px 5px;margin:8px 0 0;font-size:12px;color:var(--soft)}
.scale span{display:inline-flex;align-items:center;gap:5px;white-space:nowrap;margin-left:5px}
.scale i{width:14px;height:14px;border-radius:3px}
.scale i[class^=q]{margin-left:-4px;border-radius:0}
.readout{margin:6px 0 0;padding:6px 0;min-height:calc(3em + 12px);font-size:13px;line-height:1.5;color:var(--soft);overflow-wrap:anywhere}
.readout.on{position:sticky;bottom:0;background:var(--page);color:var(--ink)}
)";

constexpr const char* charts = R"(
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,350px),1fr));gap:28px 32px;margin:8px 0 10px}
.charts.few{grid-template-columns:repeat(auto-fill,minmax(min(100%,480px),1fr))}
.curves{max-width:580px}
.chart{display:block;width:100%;height:auto;overflow:visible;touch-action:pan-y}
.chart text{font-size:12px;fill:var(--soft);stroke:var(--page);stroke-width:3px;paint-order:stroke}
.chart .end{text-anchor:end}
.chart .middle{text-anchor:middle}
.grid{stroke:var(--grid);fill:none}
.axis{stroke:var(--line);fill:none}
.line,.peer{fill:none;stroke-width:2;stroke-linejoin:round}
.peer{stroke-width:1.5;stroke-dasharray:1.5 3;stroke-linecap:round}
.limit{fill:none;stroke:var(--ink);stroke-width:1.25;stroke-dasharray:6 4;opacity:.75}
.band{opacity:.18}
.dot{stroke:none}
.ring{fill:var(--page);stroke-width:1.5}
circle.at{stroke:var(--ink);stroke-width:2;r:5px}
.legend{display:flex;flex-wrap:wrap;gap:3px 18px;list-style:none;margin:6px 0 0;padding:0;font-size:12px;color:var(--soft)}
.legend li{display:flex;align-items:center;gap:6px}
.legend svg{width:26px;height:10px;flex:none}
)";

constexpr const char* media = R"(
@media (max-width:700px){
main{padding:24px 16px 48px}
header{padding-right:0}
#theme{position:static;margin-bottom:18px}
h1{font-size:25px}
section{margin-top:32px;padding-top:22px}
.tiles{gap:12px 24px}
.sharebar{width:72px}
.heat td{min-width:62px;padding:6px 4px}
.heat th{padding:3px 5px}
.list th,.list td{padding-right:14px}
.cases tbody th,.cases td{min-width:96px}
.cases td:nth-child(2),.cases td:nth-child(3){min-width:180px}
}
@media print{
:root{--page:#ffffff}
body{font-size:11px;background:none}
main{max-width:none;padding:0}
button,.readout,.tools{display:none!important}
figure,tr{break-inside:avoid}
section{margin-top:20px;padding-top:14px}
*{-webkit-print-color-adjust:exact;print-color-adjust:exact}
}
)";

// The colours of the lines and of the cells, which all are made of variables.
std::string colour_classes() {
    std::string text;
    for (int i = 0; i < 6; ++i)
        text += fmt::format(
            ".line.c{0},.peer.c{0},.ring.c{0}{{stroke:var(--c{0})}}.dot.c{0},.band.c{0}{{fill:var(--c{0})}}"
            "\n",
            i);
    for (const char scale : {'h', 'q'})
        for (int i = 0; i < 7; ++i)
            text += fmt::format(
                ".heat .{0}{1}{{background:var(--{0}{1});color:var(--{0}{1}t)}}.scale "
                ".{0}{1}{{background:var(--{0}{1})}}\n",
                scale, i);
    return text;
}

}  // namespace

std::string style_sheet() {
    return fmt::format(
        ":root{{{0}}}\n@media screen{{:root[data-theme=dark]{{{1}}}}}\n"
        "@media screen and "
        "(prefers-color-scheme:dark){{:root:not([data-theme=light]){{{1}}}}}\n{2}{3}{4}{5}{6}",
        light, dark, frame, tables, charts, colour_classes(), media);
}

}  // namespace sidestep::bench::html
