"""The site that `make docs` builds, opened page by page in headless Chromium, which has no network.

Skipped, with the reason, where mkdocs-material or Chromium is missing.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

SOURCE = pathlib.Path(os.environ["SIDESTEP_SOURCE_DIR"])
# Kept for people to look at.
SHOTS = pathlib.Path(os.environ.get("SIDESTEP_SHOTS", tempfile.gettempdir()))
sys.path.insert(0, str(SOURCE / "tools"))

import chromium

PYTHON = SOURCE / "build/docs-venv/bin/python3"
FAILED_IMAGES = "[...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)"
# Words of a paragraph that are Markdown still: a list that no empty line precedes, a link, a fence, bold.
MARKDOWN = r"""[...document.querySelectorAll('article p')].map(p => p.innerHTML.replace(/<code.*?<\/code>/gs, ''))
    .filter(text => /^- |\]\(|```|\*\*/m.test(text))"""
# Tables: a header without words, a backslash that was to hide a bar, a name that is cut in two, a right edge that is cut off.
# The same of code.
TABLES = r"""[...document.querySelectorAll('article thead')].filter(h => !h.textContent.trim())
    .map(h => 'no words in the header of: ' + h.parentNode.textContent.trim().slice(0, 40))
    .concat([...document.querySelectorAll('article td code')]
        .filter(c => c.textContent.includes('\\|') || (/^\w+$/.test(c.textContent) && c.getClientRects().length > 1))
        .map(c => 'in a cell: ' + c.textContent))
    .concat([...document.querySelectorAll('article code, .whole')]
        .filter(c => /^[\w.-]{1,24}$/.test(c.textContent) && new Set([...c.getClientRects()].map(r => r.top)).size > 1)
        .map(c => 'cut in two: ' + c.textContent))
    .concat([...document.querySelectorAll('article pre code')].filter(c => c.scrollWidth > c.clientWidth + 1)
        .map(c => 'lines out of sight: ' + c.textContent.trim().slice(0, 40)))
    .concat([...document.querySelectorAll('article .md-typeset__scrollwrap')].filter(t => t.scrollWidth > t.clientWidth + 1)
        .map(t => 'wider than the page: ' + t.textContent.trim().slice(0, 40)))"""
# Words of a drawing that leave it, or lie on other words.
DRAWN = """(() => { const root = document.documentElement.getBoundingClientRect();
    const all = [...document.querySelectorAll('text')].filter(t => t.textContent.trim()).map(t => [t.textContent, t.getBoundingClientRect()]);
    const over = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 4;
    return all.filter(([, b]) => b.left < root.left || b.right > root.right - 4 || b.top < root.top || b.bottom > root.bottom)
        .map(([words]) => 'leaves the drawing: ' + words)
        .concat(all.flatMap(([words, a], i) => all.slice(i + 1).filter(([, b]) => over(a, b)).map(([others]) => words + ' lies on ' + others))) })()"""
# Of what a command prints and what it is printed on, by WCAG's formula.
CONTRAST = r"""(() => { const shown = document.querySelector('.highlight .go'), below = getComputedStyle(shown.closest('code')).backgroundColor;
    const parts = text => text.match(/[\d.]+/g).map(Number), [r, g, b, a = 1] = parts(getComputedStyle(shown).color);
    const share = a * getComputedStyle(shown).opacity, mixed = [r, g, b].map((c, i) => share * c + (1 - share) * parts(below)[i]);
    const light = rgb => rgb.slice(0, 3).map(c => c / 255).map(c => c > 0.04 ? ((c + 0.055) / 1.055) ** 2.4 : c / 12.92)
        .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0.05);
    const [one, two] = [light(mixed), light(parts(below))]; return Math.max(one, two) / Math.min(one, two) })()"""
SEARCH = """(() => { const box = document.querySelector("[data-md-component=search-query]");
    box.focus(); box.value = %r; box.dispatchEvent(new Event("input")) })()"""
FOUND = "[...document.querySelectorAll('.md-search-result__link')].map(e => e.href)"
WAIT_SECONDS = 30


def build(folder, source=SOURCE):
    return subprocess.run([PYTHON, "-m", "mkdocs", "build", "--config-file", source / "mkdocs.yml", "--site-dir", folder], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300,
                          env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})


class SiteTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not PYTHON.exists():
            raise unittest.SkipTest("mkdocs-material is not here; tools/setup.sh docs installs it under build/")
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="sidestep-site-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.site = cls.folder / "site"
        before = os.times()
        built = build(cls.site)
        if built.returncode:
            raise AssertionError(f"the site does not build:\n{built.stdout}")
        after = os.times()
        cls.processor_seconds = after.children_user + after.children_system - before.children_user - before.children_system
        cls.pages = sorted(cls.site.rglob("*.html"))
        if chromium.find() is None:
            raise unittest.SkipTest("no Chromium on PATH; tools/setup.sh browser installs one where the system has it")
        try:
            cls.browser = chromium.Browser().__enter__()
        except chromium.BrowserError as error:
            # Ubuntu's package is a script that asks for a snap.
            if "snap" in str(error):
                raise unittest.SkipTest(f"Chromium does not start here: {error}") from None
            raise
        cls.addClassCleanup(cls.browser.close)

    def problems(self, path):
        """What is wrong with a page, in words."""
        self.browser.open(path)
        found = self.browser.complaints()
        for wrong in (FAILED_IMAGES, MARKDOWN, TABLES):
            found += self.browser.evaluate(wrong)
        found += [f"failed: {event['params']['errorText']}" for event in self.browser.events
                  if event["method"] == "Network.loadingFailed"]
        found += [f"not of the site: {url}" for url in self.browser.requests()
                  if not url.startswith((self.folder.as_uri(), "data:", "about:"))]
        return found

    def test_every_page_loads_without_a_complaint(self):
        self.assertGreater(len(self.pages), 80)
        for path in self.pages:
            with self.subTest(path.relative_to(self.site).as_posix()):
                self.assertEqual(self.problems(path), [])

    def test_it_builds_in_under_a_minute(self):
        self.assertTrue(0 < self.processor_seconds < 60, self.processor_seconds)

    def test_a_broken_page_is_seen(self):
        page = self.folder / "broken.html"
        for broken, words in [("<img src=none.png>", "none.png"), ("<script>no_such_name()</script>", "no_such_name"),
                              ("<link rel=stylesheet href=none.css>", "failed: "),
                              ("<article><p>text\n- point</p></article>", "- point"),
                              ("<article><table><thead><tr><th> <tbody><tr><td>a", "header of: a"),
                              ("<article><p style='width: 1em'><code>--fault", "cut in two: --fault"),
                              ("<article><pre style='width: 9em; overflow: auto'><code style='display: block; overflow: auto'>" + "long " * 9,
                               "lines out of sight: long long"),
                              (r"<article><table><tr><td><code>a \| b", r"in a cell: a \| b"),
                              ("<article><table style='width: 1em; word-break: break-all'><tr><td><code>permission_denied",
                               "in a cell: permission_denied"),
                              ("<article><div class=md-typeset__scrollwrap style='width: 9em; overflow-x: auto'><table style='width: 10em'><tr><td>a",
                               "wider than the page: a"),
                              ("<img src=https://example.invalid/a.png>", "not of the site")]:
            page.write_text("<!doctype html><title>broken</title><body>" + broken)
            self.assertIn(words, "\n".join(self.problems(page)), broken)

    def test_output_is_as_legible_as_text(self):
        for theme in ("light", "dark"):
            self.browser.open(self.site / "index.html", theme=theme)
            self.assertGreater(self.browser.evaluate(CONTRAST), 4.5, theme)

    def test_the_search_finds_a_page_from_a_disk(self):
        self.browser.open(self.site / "index.html")
        self.browser.evaluate(SEARCH % "acs-redirect")
        until = time.monotonic() + WAIT_SECONDS
        while not (found := self.browser.evaluate(FOUND)) and time.monotonic() < until:
            time.sleep(0.1)
        self.assertIn((self.site / "doctor/acs-redirect.html").as_uri(), [link.partition("?")[0] for link in found])

    def test_words_of_drawings_can_be_read(self):
        for path in (SOURCE / "docs").rglob("*.svg"):
            self.browser.open(path, height=1500)
            self.assertEqual(self.browser.evaluate(DRAWN), [], path.name)
        drawing = self.folder / "drawing.svg"
        drawing.write_text('<svg xmlns="http://www.w3.org/2000/svg" width="90" height="90"><text x="9" y="30">one</text><text x="9" y="33">two</text>'
                           '<text x="60" y="70">a long word</text></svg>')
        self.browser.open(drawing)
        self.assertEqual(self.browser.evaluate(DRAWN), ["leaves the drawing: a long word", "one lies on two"])

    def test_pictures_for_people(self):
        for name in ("index", "commands", "topology"):
            for theme in ("light", "dark"):
                self.browser.open(self.site / f"{name}.html", theme=theme)
                self.assertEqual(self.browser.evaluate("document.documentElement.scrollWidth"), 1280, name)
                (SHOTS / f"site-{name}-{theme}.png").write_bytes(self.browser.screenshot())

    def test_a_broken_link_fails_the_build(self):
        copied = self.folder / "copy"
        copied.mkdir()
        for entry in SOURCE.iterdir():
            if entry.name in ("docs", "tools"):
                shutil.copytree(entry, copied / entry.name)
            elif entry.name != "build":
                (copied / entry.name).symlink_to(entry)
        self.assertEqual(build(self.folder / "same-site", copied).returncode, 0)
        broken = {"[a](none.md)": "none.md", "[a](../src/none.hpp)": "none.hpp", "[a](start.md#none)": "#none",
                  "![a](none.png)": "none.png"}
        (copied / "docs/lanes.md").write_text("# Lanes\n\n" + "\n".join(broken) + "\n")
        (copied / "docs/nowhere.md").write_text("# In no part of the site\n")
        built = build(self.folder / "broken-site", copied)
        self.assertNotEqual(built.returncode, 0)
        for words in [*broken.values(), "nowhere.md"]:
            self.assertRegex(built.stdout, f"WARNING[^W]*{words}")


if __name__ == "__main__":
    unittest.main()
