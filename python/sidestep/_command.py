"""The command, which lies in the package, and the benchmark, which belongs to it."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any, Dict, Optional, Sequence

from ._arguments import machine_of, text_of
from ._errors import Error


def path() -> str:
    """Where the command is."""
    found = Path(__file__).parent / "bin" / "sidestep"
    if not found.exists():
        raise Error("this package was built without the command", "not_found", str(found))
    return str(found)


def bench(cases: Sequence[str], machine: Optional[str], smoke: bool, samples: Optional[int]) -> Dict[str, Any]:
    """See sidestep.bench."""
    words = [path(), "bench", "--json"]
    for case in cases:
        words += ["--case", text_of(case, "a case", "bench")]
    if machine is not None:
        words += ["--machine", os.fsdecode(machine_of(machine))]
    if smoke:
        words.append("--smoke")
    if samples is not None:
        words += ["--samples", str(samples)]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False)
    try:
        report = json.loads(done.stdout)
    except ValueError:
        raise Error(f"the command ended with {done.returncode} and without a report", "internal", "bench") from None
    if "error" in report:
        said = report["error"]
        raise Error(said["message"], said["code"], said["where"], said["hint"])
    return report
