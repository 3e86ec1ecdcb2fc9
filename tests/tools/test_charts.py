"""tools/charts.py draws what its data says, and finds a figure that the lab book does not hold."""

import json
import unittest
import xml.etree.ElementTree

from tree import TreeTest

import charts

BOOK = """# Lab book

## Copies

| to a GPU | 55.4 GB/s [54.9 .. 55.5] | nvbandwidth 55.5 |
| small | 2.32 (3.47) | 11.2 (18.6) |

## Others

| to a GPU | 12.5 |
"""
FROM = ["Copies", "| to a GPU |"]
CHART = {"file": "a.svg", "title": "Copies <1>", "panels": [
    {"title": "One link", "how": "2 x H200", "rows": [
        {"label": "to a GPU", "bars": [{"who": "Sidestep", "figure": "54.9 .. 55.5"},
                                       {"who": "nvbandwidth", "figure": "55.5"}], "from": FROM}]},
    {"title": "By size", "how": "2 x H200", "sizes": ["8 B", "2 MiB"], "from": ["Copies", "| small |"], "curves": [
        {"who": "Sidestep", "figures": ["2.32", "11.2"]}, {"who": "NCCL", "figures": ["3.47", "18.6"]}]}]}
PAGE = "# Results\n\n![Copies](charts/a.svg)\n\n| one link | 55.4 GB/s | 2026-11-21 | `bench --samples 9` |\n"


class ChartsTest(TreeTest):
    def setUp(self):
        super().setUp()
        self.write("docs/lab-book.md", BOOK)
        self.write("docs/results.md", PAGE)
        self.give(CHART)

    def give(self, *all_charts):
        self.write("tools/charts.json", json.dumps({"charts": all_charts}))
        self.assertEqual(self.run_tool("charts.py", "--root", self.root)[0], 0)

    def changed(self, **bar):
        chart = json.loads(json.dumps(CHART))
        chart["panels"][0]["rows"][0]["bars"][0].update(bar)
        return chart

    def assert_red(self, *parts):
        code, output = self.run_tool("charts.py", "--root", self.root, "--check")
        self.assertEqual(code, 1, output)
        self.assert_problem(output.splitlines()[:-1], *parts)

    def test_what_was_drawn_is_right(self):
        self.assertEqual(self.run_tool("charts.py", "--root", self.root, "--check"), (0, "charts: nothing to change\n"))

    def test_a_picture_that_was_changed(self):
        path = self.root / "docs/charts/a.svg"
        path.write_text(path.read_text().replace("55.5", "56.5"))
        self.assert_red("docs/charts/a.svg: not what")

    def test_a_picture_that_is_missing(self):
        (self.root / "docs/charts/a.svg").unlink()
        self.assert_red("docs/charts/a.svg: not what")

    def test_a_picture_of_no_chart(self):
        self.write("docs/charts/b.svg", "<svg/>")
        self.assert_red("docs/charts/b.svg: no chart")

    def test_a_picture_that_nobody_sees(self):
        self.write("docs/results.md", "# Results\n")
        self.assert_red("docs/charts/a.svg", "does not show it")

    def test_a_figure_that_is_in_no_line_of_the_lab_book(self):
        self.give(self.changed(figure="54.9 .. 55.6"))
        self.assert_red("to a GPU, Sidestep", "55.6 is not in its line")

    def test_a_figure_of_another_section(self):
        self.give(self.changed(figure="12.5"))
        self.assert_red("12.5 is not in its line")

    def test_part_of_a_figure_is_none(self):
        self.give(self.changed(figure="5.4"))
        self.assert_red("5.4 is not in its line")

    def test_names_and_versions_are_no_figures(self):
        self.assertEqual(charts.FIGURE.findall("H200, 8KiB, by 1.2.3: 55.4, 7 GB/s."), ["55.4", "7"])

    def test_a_bar_without_a_figure(self):
        chart = self.changed(figure="fast")
        self.assertIn("no figure in 'fast'", charts.check_sources(chart, BOOK)[0])

    def test_a_line_that_is_not_there(self):
        self.write("docs/lab-book.md", BOOK.replace("| small |", "| tiny |"))
        code, output = self.run_tool("charts.py", "--root", self.root, "--check")
        self.assertEqual((code, output.count("no one line of 'Copies'")), (1, 2), output)

    def test_two_lines_that_begin_alike(self):
        self.assertIsNone(charts.line_of("# A\n| x | 1 |\n| x | 2 |\n", "A", "| x |"))
        self.assertEqual(charts.line_of("# A\n| x | 1 |\n# B\n| x | 2 |\n", "B", "| x |"), "| x | 2 |")

    def test_a_figure_of_the_page(self):
        self.write("docs/results.md", PAGE + "\nOne link carries 55.3 GB/s.\n")
        self.assert_red("docs/results.md:7", "55.3 is not in the lab book")

    def test_curves_and_sizes_are_as_many(self):
        chart = json.loads(json.dumps(CHART))
        chart["panels"][1]["curves"][0]["figures"].pop()
        with self.assertRaises(ValueError):
            charts.draw(chart)


class DrawTest(unittest.TestCase):
    def test_bars_are_as_long_as_their_figures(self):
        picture = xml.etree.ElementTree.fromstring(charts.draw(CHART))
        bars = [(shape.get("class"), float(shape.get("width"))) for shape in picture.iter("{http://www.w3.org/2000/svg}rect")
                if shape.get("x") == str(charts.LEFT)]
        room = charts.RIGHT - charts.LEFT
        self.assertEqual(bars, [("ours", round(room * 54.9 / 55.5, 1)), ("peer", room)])

    def test_the_words_of_a_range(self):
        texts = [text.text for text in xml.etree.ElementTree.fromstring(charts.draw(CHART)).iter("{http://www.w3.org/2000/svg}text")]
        self.assertIn("Sidestep 54.9 to 55.5", texts)
        self.assertIn("Copies <1>", texts)

    def test_nothing_is_loaded_and_both_themes_are_there(self):
        picture = charts.draw(CHART)
        self.assertNotRegex(picture.replace("http://www.w3.org/2000/svg", ""), "https?:|url\\(|@import|@font-face")
        self.assertIn("prefers-color-scheme:dark", picture)


if __name__ == "__main__":
    unittest.main()
