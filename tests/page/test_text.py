"""The page's text, without a browser: its drawings as XML, its colours, its policy."""

import base64
import hashlib
import re
import unittest
import xml.etree.ElementTree

import pages

KINDS = ("example", "large", "hostile", "empty")


def inline_drawings(page):
    return re.findall(r"<svg.*?</svg>", page, re.DOTALL)


def variables(rules):
    return dict(re.findall(r"--(\w+):(#[0-9a-f]{6})", rules))


def luminance(colour):
    """Relative luminance as WCAG 2.1 defines it."""
    channels = [int(colour[at:at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


class TextTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.pages = {kind: pages.text_of(kind) for kind in KINDS}

    def test_every_drawing_is_well_formed(self):
        for kind, page in self.pages.items():
            drawings = inline_drawings(page)
            self.assertEqual(len(drawings), page.count("<svg"), kind)
            for drawing in drawings:
                xml.etree.ElementTree.fromstring(drawing)
        self.assertGreater(len(inline_drawings(self.pages["example"])), 10)

    def test_drawings_are_within_their_frames(self):
        for drawing in inline_drawings(self.pages["example"]):
            root = xml.etree.ElementTree.fromstring(drawing)
            if root.get("class") != "chart":
                continue
            _, _, width, height = map(float, root.get("viewBox").split())
            for circle in root.iter("circle"):
                self.assertTrue(0 <= float(circle.get("cx")) <= width, drawing[:80])
                self.assertTrue(0 <= float(circle.get("cy")) <= height, drawing[:80])

    def test_the_policy_names_the_script_that_is_there(self):
        for page in self.pages.values():
            script = re.search(r"<script>(.*?)</script>", page, re.DOTALL).group(1)
            own = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
            self.assertIn(f"script-src 'sha256-{own}'", page, "script_hash() in bench/html/script.cpp is not the script's")

    def test_words_are_legible_on_every_colour(self):
        style = re.search(r"<style>(.*?)</style>", self.pages["empty"], re.DOTALL).group(1)
        light = variables(re.search(r":root\{(.*?)\}", style, re.DOTALL).group(1))
        dark = variables(re.search(r":root\[data-theme=dark\]\{(.*?)\}", style, re.DOTALL).group(1))
        self.assertEqual(light.keys(), dark.keys())
        for theme in (light, dark):
            pairs = [(name, name + "t") for name in theme if name + "t" in theme]
            self.assertEqual(len(pairs), 15)
            pairs += [("page", name) for name in ("ink", "soft", "link", "good", "bad")] + [("hint", "ink")]
            for ground, words in pairs:
                self.assertGreaterEqual(contrast(theme[ground], theme[words]), 4.5, (ground, words, theme[ground]))
            for line in range(6):
                self.assertGreaterEqual(contrast(theme["page"], theme[f"c{line}"]), 3, f"c{line}")

    def test_colours_get_stronger_step_by_step(self):
        style = self.pages["empty"]
        for rules in (r":root\{(.*?)\}", r":root\[data-theme=dark\]\{(.*?)\}"):
            theme = variables(re.search(rules, style, re.DOTALL).group(1))
            steps = [luminance(theme[f"q{i}"]) for i in range(7)]
            self.assertIn(steps, (sorted(steps), sorted(steps, reverse=True)))

    def test_pages_are_small(self):
        for kind, page in self.pages.items():
            self.assertLess(len(page.encode()), 2_000_000, kind)


if __name__ == "__main__":
    unittest.main()
