"""What mkdocs does besides, when `make docs` builds the site: see mkdocs.yml.

- The start page is the first page.
- The checks of the doctor are listed below it.
- The help of every verb becomes a page. SIDESTEP_BINARY names the command.
- Documents that lie outside docs/ become pages, and links lead to them. A link to a source file becomes its name.
- Options, days and short names in code are not cut in two at their hyphens.
"""

import os
import pathlib
import posixpath
import re
import subprocess

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUTSIDE = {"architecture.md": "ARCHITECTURE.md", "contributing.md": "CONTRIBUTING.md", "nccl.md": "shims/nccl/README.md",
           "cufile.md": "shims/cufile/README.md"}
CODE_OR_LINK = re.compile(r"^(?P<fence>```|~~~).*?^(?P=fence)|\[(?P<words>[^\]]*)\]\((?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)"
                          r"|`[^`\n]*`", re.DOTALL | re.MULTILINE)

# What stays on one line: a short name in code, an option, a day.
WHOLE = re.compile(r"<pre.*?</pre>|<[^>]*>|(?P<whole>(?<=<code>)[^\s<]{1,24}(?=</code>)|--[a-z][\w-]*|\b\d{4}-\d\d-\d\d\b)", re.DOTALL)


def help_of(words):
    """The help of a verb, and the names of the verbs below it."""
    binary = os.environ.get("SIDESTEP_BINARY", "")
    try:
        text = subprocess.run([binary, *words, "--help"], capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise PluginError(f"SIDESTEP_BINARY={binary} does not print its help; make docs builds it: {error}") from error
    listed = re.search(r"^Verbs:\n((?:  .*\n)+)", text, re.MULTILINE)
    below = re.findall(r"^  (\w+)", listed.group(1), re.MULTILINE) if listed else []
    return text, below


def verbs_below(words=()):
    """Every verb and operation as (words, help), in the order of the help."""
    text, below = help_of(words)
    yield words, text
    for word in below:
        yield from verbs_below((*words, word))


def help_page():
    parts = ["# Help of every verb\n"]
    for words, text in verbs_below():
        heading = f"\n## {' '.join(words)}\n" if words else ""
        parts.append(f"{heading}\n```text\n{text.rstrip()}\n```\n")
    return "".join(parts)


def on_config(config):
    # A page for servers, which does not work from a disk.
    config.theme.static_templates.discard("404.html")
    (reference,) = (part["Reference"] for part in config.nav if "Reference" in part)
    checks = sorted(path.stem for path in (ROOT / "docs/doctor").glob("*.md") if path.stem != "README")
    reference[reference.index({"Doctor": "doctor/README.md"})] = {
        "Doctor": ["doctor/README.md", *({check: f"doctor/{check}.md"} for check in checks)]}


def on_files(files, config):
    files.get_file_from_path("start.md").dest_uri = "index.html"
    files.append(File.generated(config, "help.md", content=help_page()))
    for name, document in OUTSIDE.items():
        files.append(File.generated(config, name, content=(ROOT / document).read_text(encoding="utf-8")))
    return files


def title_of(document):
    return document.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def on_page_markdown(markdown, page, config, files):
    if page.file.src_uri == "start.md":
        page.meta["hide"] = ["navigation"]  # it would list this page alone
    folder = posixpath.dirname(OUTSIDE.get(page.file.src_uri, "docs/" + page.file.src_uri))
    here = posixpath.dirname(page.file.src_uri) or "."
    pages = {document: name for name, document in OUTSIDE.items()}

    def lead(match):
        words, target = match["words"], match["target"]
        if target is None or re.match(r"[a-z]+:", target):
            return match.group()
        path = posixpath.normpath(posixpath.join(folder, target))
        file = ROOT / path
        if file.exists() and path not in pages and not path.startswith("docs/"):
            return words
        # Readers of the site know pages by their titles.
        if file.suffix == ".md" and file.exists() and posixpath.basename(words) == file.name:
            words = title_of(file)
        there = posixpath.relpath(pages.get(path, path.removeprefix("docs/")), here)
        return f"[{words}]({there}{match['anchor'] or ''})"
    return CODE_OR_LINK.sub(lead, markdown)


def on_page_content(html, page, config, files):
    return WHOLE.sub(lambda match: f'<span class="whole">{match["whole"]}</span>' if match["whole"] else match.group(), html)
