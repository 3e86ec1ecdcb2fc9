"""Writes the C++ of a guide into files: each block under the path that the text before it names last.

    guide_code.py GUIDE FOLDER PATH...     the paths are all that the guide has to name, else it fails
"""

import pathlib
import re
import sys

guide, folder, *wanted = sys.argv[1:]
blocks, before = {}, ""
for part in re.split(r"(^```.*?^```$)", pathlib.Path(guide).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL):
    if part.startswith("```cpp\n"):
        blocks[re.findall(r"`([\w./]+\.[ch]pp)`", before)[-1]] = part.removeprefix("```cpp\n").removesuffix("```")
    before = part
if sorted(blocks) != sorted(wanted):
    sys.exit(f"{guide} has {sorted(blocks)}, not {sorted(wanted)}")
for path, code in blocks.items():
    target = pathlib.Path(folder) / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(code, encoding="utf-8")
