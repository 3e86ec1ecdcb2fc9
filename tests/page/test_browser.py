"""The page in headless Chromium, which has no network; skipped, with the reason, where there is no Chromium."""

import json
import os
import pathlib
import shutil
import tempfile
import unittest

import pages
from png import Picture

import chromium

# Kept for people to look at.
SHOTS = pathlib.Path(os.environ.get("SIDESTEP_SHOTS", tempfile.gettempdir()))
WIDE, NARROW = 1280, 400


def rgb(words):
    """(1, 2, 3) of "rgb(1, 2, 3)"."""
    return tuple(int(part) for part in words[words.index("(") + 1:words.index(")")].split(",")[:3])


class BrowserTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if chromium.find() is None:
            raise unittest.SkipTest("no Chromium on PATH; tools/setup.sh browser installs one where the system has it")
        cls.folder = tempfile.mkdtemp(prefix="sidestep-page-")
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.pages = {kind: pages.make(kind, cls.folder) for kind in ("example", "large", "hostile", "empty")}
        try:
            cls.browser = chromium.Browser().__enter__()
        except chromium.BrowserError as error:
            # Ubuntu's package is a script that asks for a snap.
            if "snap" in str(error):
                raise unittest.SkipTest(f"Chromium does not start here: {error}") from None
            raise
        cls.addClassCleanup(cls.browser.close)

    def open(self, kind="example", **how):
        self.browser.open(self.pages[kind], **how)

    def value(self, expression):
        return self.browser.evaluate(expression)

    def picture(self, name):
        data = self.browser.screenshot()
        (SHOTS / f"page-{name}.png").write_bytes(data)
        return Picture(data)

    def background(self):
        return rgb(self.value("getComputedStyle(document.body).backgroundColor"))

    def test_nothing_is_loaded_and_nothing_complains(self):
        for kind, path in self.pages.items():
            for theme in ("light", "dark"):
                self.open(kind, theme=theme)
                self.assertEqual(self.browser.complaints(), [], kind)
                self.assertEqual(self.browser.requests(), [path.resolve().as_uri()], kind)

    def test_the_size_is_sensible(self):
        for width in (WIDE, NARROW):
            for kind, most in (("example", 14000), ("large", 40000), ("empty", 1500)):
                self.open(kind, width=width)
                self.assertLess(self.value("document.documentElement.scrollHeight"), most, (kind, width))
                # A page wider than the window scrolls sideways: only its tables may.
                self.assertEqual(self.value("document.documentElement.scrollWidth"), width, kind)
        self.open("example")
        self.assertGreater(self.value("document.documentElement.scrollHeight"), 3000)

    def test_charts_and_cells_are_drawn(self):
        self.open()
        lines = self.value("[...document.querySelectorAll('.chart .line')].map(e => e.getTotalLength())")
        self.assertEqual(len(lines), 6)
        self.assertGreater(min(lines), 200)
        sizes = self.value("[...document.querySelectorAll('.chart')].map(e => e.getBoundingClientRect().height)")
        self.assertGreater(min(sizes), 150)
        colours = self.value("[...document.querySelectorAll('.heat td:not(.hole)')]"
                             ".map(e => getComputedStyle(e).backgroundColor)")
        self.assertGreaterEqual(len(set(colours)), 7)

    def test_no_style_of_the_page_reaches_the_drawing(self):
        self.open()
        self.assertEqual(self.value(
            "[...document.querySelectorAll('.sidestep rect:not(.back)')]"
            ".filter(e => ['width', 'height'].some(n => Math.abs(e.getBBox()[n] - e.getAttribute(n)) > 0.01)).length"), 0)
        self.assertGreater(self.value("document.querySelectorAll('.sidestep rect').length"), 10)

    def test_themes_on_the_screen(self):
        grounds = {}
        for theme in ("light", "dark"):
            self.open(theme=theme, width=WIDE, height=760)
            self.picture(f"{theme}-head")
            self.value("document.getElementById('case-2').scrollIntoView()")
            picture = self.picture(f"{theme}-matrices")
            self.assertEqual((picture.width, picture.height), (WIDE, 760))
            grounds[theme] = self.background()
            self.assertEqual(picture.at(3, 400), grounds[theme])
            counts = picture.counts()
            self.assertGreater(len(counts), 50)
            self.assertLess(counts[grounds[theme]], 0.98 * WIDE * 760)
            # A cell at the limit and one far below are there in their colours.
            for cell in (".heat .h6", ".heat .h1"):
                colour = rgb(self.value(f"getComputedStyle(document.querySelector('#case-2 {cell}')).backgroundColor"))
                self.assertGreater(counts.get(colour, 0), 1000, (theme, cell, colour))
        self.assertGreater(sum(grounds["light"]), 600)
        self.assertLess(sum(grounds["dark"]), 150)

    def test_the_narrow_page_on_the_screen(self):
        for theme in ("light", "dark"):
            self.open(theme=theme, width=NARROW, height=800)
            self.assertEqual(self.picture(f"{theme}-narrow").at(2, 700), self.background())

    def test_the_button_changes_the_theme(self):
        self.open(theme="dark")
        gpu = "getComputedStyle(document.querySelector('.sidestep rect.gpu')).fill"
        dark, dark_gpu = self.background(), self.value(gpu)
        self.browser.click("#theme")
        light, light_gpu = self.background(), self.value(gpu)
        self.assertGreater(sum(light), sum(dark))
        self.assertNotEqual(light_gpu, dark_gpu)
        self.browser.click("#theme")
        self.assertEqual((self.background(), self.value(gpu)), (dark, dark_gpu))

    def readout(self, block):
        return self.value(f"document.querySelector('{block} .readout').textContent")

    def test_a_pointer_on_a_cell_reads_it_out(self):
        self.open()
        before = self.readout("#case-2")
        self.assertIn("Point at a value", before)
        self.browser.move_to(*self.browser.middle_of("#case-2 .heat .h1"))
        pointed = self.readout("#case-2")
        for words in ("gpu:3 -> gpu:1, copy engine", "1 GiB", "GB/s [", "9 samples", "of 396 GB/s (link: 18 x NVLink)",
                      "nvbandwidth 0.8", "path gpu:3 -> gpu:1"):
            self.assertIn(words, pointed)
        self.browser.move_to(*self.browser.middle_of("#case-2 .heat .h3"))
        self.assertIn("gpu:1 -> gpu:3, copy engine", self.readout("#case-2"))
        self.browser.move_to(2, 2)
        self.assertEqual(self.readout("#case-2"), before)

    def test_a_pointer_on_a_chart_reads_the_nearest_point_out(self):
        self.open()
        block = "#case-3 .charts"
        x, y = self.browser.middle_of(f"{block} .chart")
        read = "document.querySelector('#case-3 .charts').parentNode.querySelector('.readout').textContent"
        self.browser.move_to(x, y)
        middle = self.value(read)
        self.assertRegex(middle, r"gpu:0 -> gpu:1 · \d+ [KMG]iB · |bare cuMemcpyAsync · ")
        self.browser.move_to(x + 120, y)
        self.assertNotEqual(self.value(read), middle)
        self.assertEqual(self.value("document.querySelectorAll('circle.at').length"), 1)

    def test_the_arrow_keys_do_too(self):
        self.open()
        self.value("document.querySelector('#case-2 .heat').focus()")
        self.browser.press("ArrowRight")
        self.assertIn("gpu:0 -> gpu:1, copy engine", self.readout("#case-2"))
        self.browser.press("ArrowDown")
        self.assertIn("gpu:2 -> gpu:1, copy engine", self.readout("#case-2"))
        self.browser.press("ArrowLeft")
        self.assertIn("gpu:2 -> gpu:0, copy engine", self.readout("#case-2"))

    def test_a_column_sorts(self):
        self.open()
        self.value("document.querySelector('#figures details').open = true")
        sizes = "[...document.querySelectorAll('.sortable tbody tr')].map(r => r.cells[7].textContent)"
        for order in (False, True):
            self.browser.click(".sortable th:nth-child(8) button")
            shares = [float(share.split()[0]) for share in self.value(sizes) if share]
            self.assertEqual(len(shares), 109)
            self.assertEqual(shares, sorted(shares, reverse=order))
            # Those without a share come last either way.
            self.assertEqual(self.value(sizes)[-1], "")

    def test_it_says_everything_without_scripts(self):
        self.open(scripting=False)
        self.assertEqual(self.value("document.querySelectorAll('#theme[hidden], .tools[hidden]').length"), 2)
        self.assertEqual(self.value("document.querySelectorAll('.heat td[title]').length"), 81)
        self.assertGreater(self.value("document.querySelectorAll('.chart circle > title').length"), 60)

    def test_hostile_words_stay_words(self):
        self.open("hostile")
        self.assertEqual(self.value("document.images.length"), 0)
        self.assertEqual(self.value("document.scripts.length"), 2)
        self.assertEqual([e for e in self.browser.events if e["method"] == "Page.javascriptDialogOpening"], [])
        self.assertTrue(self.value("document.querySelector('h1').textContent").startswith("</script><script>alert(1)"))
        report = json.loads(self.value("document.getElementById('report').textContent"))
        self.assertIn("</title></style>", report["machine"])

    def test_the_policy_stops_what_a_page_might_load(self):
        self.open()
        self.value("{const s = document.createElement('script'); s.textContent = 'window.ran = 1';"
                   " document.body.append(s); const i = document.createElement('img'); i.src = 'http://127.0.0.1:9/a.png';"
                   " document.body.append(i)}")
        self.assertIsNone(self.value("window.ran"))
        self.assertEqual(self.value("fetch('data:,x').then(() => 'loaded', () => 'refused')"), "refused")
        self.assertTrue(any("Content Security Policy" in text for text in self.browser.complaints()))

    def test_the_report_can_be_saved(self):
        self.open()
        self.browser.call("Page.setDownloadBehavior", behavior="allow", downloadPath=self.folder)
        self.browser.click("#download")
        saved = pathlib.Path(self.folder) / "report.json"
        self.browser.wait_for("Page.downloadProgress", lambda event: event["state"] == "completed")
        self.assertEqual(json.loads(saved.read_text()),
                         json.loads(self.value("document.getElementById('report').textContent")))


if __name__ == "__main__":
    unittest.main()
