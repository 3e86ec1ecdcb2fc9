#!/usr/bin/env python3
"""Draws the charts of docs/results.md from tools/charts.json, and checks them.

    tools/charts.py            writes docs/charts/*.svg
    tools/charts.py --check    writes nothing: are the charts those of the data, and the figures those of the lab book?

A figure in the data is text, as the lab book writes it: "55.4", "55.37 .. 55.39" for a range, "18.0, 17.7" for rounds.
"from" names a section of docs/lab-book.md and how the line begins that holds the figure. --check wants each figure in
that line, each chart in docs/results.md, and each figure of that page in the lab book.
"""

import argparse
import json
import math
import pathlib
import re
import sys
from xml.sax.saxutils import escape

ROOT = pathlib.Path(__file__).resolve().parent.parent
FIGURE = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?![\w]|\.\d)")
WIDTH, LEFT, RIGHT = 760, 236, 536
BAR, GAP, ROW = 15, 3, 12
STYLE = """
.s text{font-family:Inter,"Segoe UI",Roboto,"Helvetica Neue",Arial,"Liberation Sans","DejaVu Sans",sans-serif;font-size:13px;fill:#2c3848}
.s .title{font-size:16px;font-weight:600;fill:#141d29}
.s .strong{font-weight:600;fill:#141d29}
.s .faint{fill:#5d6b7d;font-size:12px}
.s .small{font-size:11px}
.s .ours-text{fill:#155a9c;font-weight:600}
.s .middle{text-anchor:middle}
.s .end{text-anchor:end}
.s .back{fill:#f4f6f9}
.s .ours{fill:#1971c2}
.s .peer{fill:#98a4b5}
.s .spread{fill-opacity:.45}
.s .grid{stroke:#d5dce6;stroke-width:1}
.s .mark{stroke:#c2255c;stroke-width:1.5;stroke-dasharray:4 3}
.s .line{fill:none;stroke-width:2}
.s .ours-line{stroke:#1971c2}
.s .peer-line{stroke:#98a4b5}
@media (prefers-color-scheme:dark){
.s text{fill:#d5dde8}
.s .title,.s .strong{fill:#f3f6fa}
.s .faint{fill:#9aa8ba}
.s .ours-text{fill:#74c0fc}
.s .back{fill:#0e1217}
.s .ours{fill:#4dabf7}
.s .peer{fill:#728196}
.s .grid{stroke:#2a3544}
.s .mark{stroke:#f783ac}
.s .ours-line{stroke:#4dabf7}
.s .peer-line{stroke:#728196}
}
"""


def numbers(text):
    return [float(number) for number in FIGURE.findall(text)]


class Svg:
    """Shapes of one picture, from the top down."""

    def __init__(self):
        self.shapes = []
        self.y = 0

    def text(self, x, y, words, kind=""):
        kind = f' class="{kind}"' if kind else ""
        self.shapes.append(f'<text x="{x:g}" y="{y:g}"{kind}>{escape(words)}</text>')

    def bar(self, x, y, width, kind):
        self.shapes.append(f'<rect x="{x:g}" y="{y:g}" width="{max(width, 1):.1f}" height="{BAR}" rx="2" class="{kind}"/>')

    def line(self, x1, y1, x2, y2, kind):
        self.shapes.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>')

    def whole(self, title):
        head = (f'<svg xmlns="http://www.w3.org/2000/svg" class="s" viewBox="0 0 {WIDTH} {self.y:g}" width="{WIDTH}" '
                f'height="{self.y:g}" role="img">\n<title>{escape(title)}</title>\n<style>{STYLE}</style>\n'
                '<rect class="back" width="100%" height="100%" rx="10"/>\n')
        return head + "\n".join(self.shapes) + "\n</svg>\n"


def words_of(figure):
    return figure.replace(" .. ", " to ")


def draw_bars(svg, panel):
    most = max(max(numbers(bar["figure"])) for row in panel["rows"] for bar in row["bars"])
    scale = (RIGHT - LEFT) / most
    top = svg.y
    for row in panel["rows"]:
        height = len(row["bars"]) * (BAR + GAP)
        lines = row["label"].split("\n")
        for index, line in enumerate(lines):
            svg.text(LEFT - 12, svg.y + height / 2 + 3 + 16 * (index - (len(lines) - 1) / 2), line, "end")
        for bar in row["bars"]:
            least, greatest = min(numbers(bar["figure"])), max(numbers(bar["figure"]))
            ours = bar["who"] == "Sidestep"
            kind = "ours" if ours else "peer"
            svg.bar(LEFT, svg.y, least * scale, kind)
            if greatest > least:
                svg.bar(LEFT + least * scale, svg.y, (greatest - least) * scale, kind + " spread")
            # Beside a mark the figures stand in a column, so that the mark crosses none.
            x, who = (RIGHT, "") if panel.get("marks") else (LEFT + greatest * scale, bar["who"] + " ")
            svg.text(x + 8, svg.y + BAR - 3, who + words_of(bar["figure"]), "ours-text" if ours else "")
            svg.y += BAR + GAP
        svg.y += ROW
    for mark in panel.get("marks", ()):
        x = LEFT + mark["at"] * scale
        svg.line(x, top - 4, x, svg.y - ROW + 4, "mark")
        svg.text(x, svg.y + 6, mark["label"], "faint middle")
    svg.y += 14 if panel.get("marks") else 0


def draw_curves(svg, panel):
    left, right, top, bottom = 84, WIDTH - 24, svg.y + 14, svg.y + 224
    step = (right - left) / len(panel["sizes"])
    places = [left + step * (index + 0.5) for index in range(len(panel["sizes"]))]
    values = [float(value) for curve in panel["curves"] for value in curve["figures"]]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))

    def y_of(value):
        return bottom - (bottom - top) * (math.log10(value) - low) / (high - low)

    for power in range(low, high + 1):
        svg.line(left, y_of(10 ** power), right, y_of(10 ** power), "grid")
        svg.text(left - 8, y_of(10 ** power) + 4, f"{10 ** power:g} us", "faint end")
    for words, x in zip(panel["sizes"], places):
        svg.text(x, bottom + 18, words, "faint middle")
    for curve in panel["curves"]:
        ours = curve["who"] == "Sidestep"
        kind = "ours" if ours else "peer"
        points = [(x, y_of(float(value))) for x, value in zip(places, curve["figures"], strict=True)]
        svg.shapes.append(f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}" class="line {kind}-line"/>')
        for (x, y), value in zip(points, curve["figures"]):
            svg.shapes.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" class="{kind}"/>')
            svg.text(x, y + 17 if ours else y - 9, value, "small middle" + (" ours-text" if ours else ""))
    for index, curve in enumerate(panel["curves"]):
        ours = curve["who"] == "Sidestep"
        svg.bar(left + 14, top + 4 + 20 * index, 22, "ours" if ours else "peer")
        svg.text(left + 42, top + 16 + 20 * index, curve["who"], "ours-text" if ours else "")
    svg.y = bottom + 38


def draw(chart):
    """The whole text of one picture."""
    svg = Svg()
    svg.text(24, 32, chart["title"], "title")
    svg.y = 40
    for panel in chart["panels"]:
        svg.y += 18
        svg.text(24, svg.y, panel["title"], "strong")
        svg.y += 17
        svg.text(24, svg.y, panel["how"], "faint")
        svg.y += 12
        (draw_curves if "curves" in panel else draw_bars)(svg, panel)
    svg.y += 2
    return svg.whole(chart["title"])


def sources(chart):
    """(what, the figures' text, section, how the line begins) of everything in a chart."""
    for panel in chart["panels"]:
        for row in panel.get("rows", ()):
            for bar in row["bars"]:
                yield f'{row["label"]}, {bar["who"]}', bar["figure"], *bar.get("from", row.get("from"))
        for curve in panel.get("curves", ()):
            yield curve["who"], ", ".join(curve["figures"]), *panel["from"]


def line_of(book, section, begin):
    """The only line of a section of the lab book that begins so; None where there is none, or several."""
    found, inside = [], False
    for line in book.splitlines():
        if line.startswith("#"):
            inside = line.lstrip("# ") == section
        elif inside and line.startswith(begin):
            found.append(line)
    return found[0] if len(found) == 1 else None


def check_sources(chart, book):
    problems = []
    for what, figures, section, begin in sources(chart):
        line = line_of(book, section, begin)
        where = f'charts.json: {chart["file"]}: {what!r}'.replace("\\n", " ")
        if line is None:
            problems.append(f"{where}: no one line of {section!r} begins with {begin!r}")
            continue
        held = FIGURE.findall(line)
        wanted = FIGURE.findall(figures)
        if not wanted:
            problems.append(f"{where}: no figure in {figures!r}")
        problems += [f"{where}: {figure} is not in its line of the lab book" for figure in wanted if figure not in held]
    return problems


def check_page(page, book):
    """Every figure of the results stands in the lab book, written the same. Days, commands and links are no figures."""
    held = set(FIGURE.findall(book))
    problems = []
    for number, line in enumerate(page.splitlines(), 1):
        line = re.sub(r"`[^`]*`|\]\([^)]*\)|\b20\d\d-\d\d-\d\d\b", "", line)
        problems += [f"docs/results.md:{number}: {figure} is not in the lab book"
                     for figure in FIGURE.findall(line) if figure not in held]
    return problems


def check(root, charts):
    book = (root / "docs/lab-book.md").read_text(encoding="utf-8")
    page = (root / "docs/results.md").read_text(encoding="utf-8")
    problems = check_page(page, book)
    for chart in charts:
        path = root / "docs/charts" / chart["file"]
        if not path.exists() or path.read_text(encoding="utf-8") != draw(chart):
            problems.append(f'docs/charts/{chart["file"]}: not what tools/charts.py draws')
        if f'charts/{chart["file"]}' not in page:
            problems.append(f'docs/charts/{chart["file"]}: docs/results.md does not show it')
        problems += check_sources(chart, book)
    drawn = {chart["file"] for chart in charts}
    problems += [f"docs/charts/{path.name}: no chart of tools/charts.json"
                 for path in sorted((root / "docs/charts").glob("*")) if path.name not in drawn]
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=ROOT)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    charts = json.loads((arguments.root / "tools/charts.json").read_text(encoding="utf-8"))["charts"]
    if arguments.check:
        problems = check(arguments.root, charts)
        print("\n".join(problems + [f"charts: {len(problems)} problems" if problems else "charts: nothing to change"]))
        return 1 if problems else 0
    folder = arguments.root / "docs/charts"
    folder.mkdir(parents=True, exist_ok=True)
    for chart in charts:
        (folder / chart["file"]).write_text(draw(chart), encoding="utf-8")
    print(f"charts: {len(charts)} drawn")
    return 0


if __name__ == "__main__":
    sys.exit(main())
