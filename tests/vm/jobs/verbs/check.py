"""The tests of links and sessions over an RDMA card, those that are particular to one, and how quick it is beside perftest."""

import os
import pathlib
import re
import subprocess
import time

import copies
from checks import Checks

PERFTEST = pathlib.Path(os.environ["VM_TOOLS"]) / "usr/bin"
CARD = os.environ["SIDESTEP_TEST_VERBS"]
ADDRESS = "10.9.0.1"
PORT = 18515
# Whoever speaks over a bare socket is no RDMA card. These, and no others, are skipped.
BARE = ("Link.FramesMayComeInAnyPortions Link.FramesThatMayWaitGoTogether Link.WhoSaidLaterIsAskedAgainWhenResumed "
        "Link.NoResumeIsLost Link.WhoWaitsForOneOfFewPlacesGetsIt Link.WhatWasThereBeforeTheSocketIsTakenIn "
        "Link.SentIsToldWhenTheBytesAreGone LinkEnd.GarbageEndsTheLink LinkEnd.WhoHangsUpLeavesNothingBehind "
        "LinkEnd.EngineEndsWhatIsLeft LinkEnd.ItsOwnerMayGoAtAnyTime "
        "Session.WaitsForItsPaceOnceHoweverOftenItIsAsked").split()
# Those of one engine and of an emulated processor's patience are left out.
LINKS = "Link.*:LinkEnd.*:Session.*:SessionParts.GoWhereTheyBelong:SessionParts.FailAsOne:-LinkEnd.WhoNeverReadsIsGivenUp:Session.WithdrawnMemoryIsNotTouched"


def run_tests(checks, what, filter_, least, skipped, program="LINKS_PROGRAM"):
    begin = time.monotonic()
    done = subprocess.run([os.environ[program], f"--gtest_filter={filter_}"], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace")
    if done.returncode != 0:
        print(done.stdout)
    passed = re.findall(r"^\[       OK \] (\S+)", done.stdout, re.MULTILINE)
    left_out = re.findall(r"^\[  SKIPPED \] (\S+) \(", done.stdout, re.MULTILINE)
    checks.same(f"{what}: exit code", done.returncode, 0)
    checks.same(f"{what}: skipped", sorted(left_out), sorted(skipped))
    checks.same(f"{what}: at least {least} of {len(passed)} passed", len(passed) >= least, True)
    slowest = re.findall(r"^\[       OK \] (\S+) \((\d+) ms\)", done.stdout, re.MULTILINE)
    slowest = sorted(slowest, key=lambda one: -int(one[1]))[:4]
    print(f"{what}: {len(passed)} passed in {time.monotonic() - begin:.1f} s; the slowest: {slowest}")
    return done.stdout


def perftest(name, size, rounds):
    """The line of figures that one of its programs prints."""
    command = [PERFTEST / name, "-d", CARD, "-x", "1", "-n", str(rounds), "-s", str(size), "-F"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        until = time.monotonic() + 5
        while time.monotonic() < until and f":{PORT:04X} " not in pathlib.Path("/proc/net/tcp").read_text():
            time.sleep(0.05)
        try:
            told = subprocess.run([*command, ADDRESS], capture_output=True, text=True, timeout=20).stdout
        except subprocess.TimeoutExpired:
            told = ""
        server.kill()
    found = re.search(rf"^\s*{size}\s+{rounds}\s+(.*)$", told, re.MULTILINE)
    return [float(word) for word in found.group(1).split()] if found else None


def measure(checks):
    """Figures for people, the best of two turns: emulated processors say nothing about a card, and these are only to be
    compared with each other."""
    found = {}

    def note(name, figure, better):
        if figure is not None:
            found[name] = better(found.get(name, figure), figure)

    for _ in range(2):
        told = run_tests(checks, "speed", "Verbs.Speed", 1, [], "SPEED_PROGRAM")
        for name, figure, unit in re.findall(r"^speed: (.*): (\S+) (MB/s|us)", told, re.MULTILINE):
            note(f"sidestep, {name} [{unit}]", float(figure), max if unit == "MB/s" else min)
        for size in (64 << 10, 256 << 10, 1 << 20):
            figures = perftest("ib_write_bw", size, 100)
            note(f"ib_write_bw, {size} B, average [MB/s]", figures and figures[1] * 1.048576, max)
        figures = perftest("ib_write_lat", 8, 300)
        note("ib_write_lat, 8 B, there and back, typical [us]", figures and 2 * figures[2], min)
    for name, figure in found.items():
        print(f"  {name}: {figure:.1f}")
    checks.same("figures of perftest", sum("ib_write" in name for name in found), 4)


def main():
    checks = Checks()
    if os.environ["VM_MACHINE"] == "contract":
        run_tests(checks, "links and sessions", LINKS, 17, BARE)
    elif os.environ["VM_MACHINE"] == "copies":
        copies.check(checks)
        said = run_tests(checks, "cards that come back, and batches", "VerbsBack.*", 2, [], "NETWORK_PROGRAM")
        for line in re.findall(r"^batch: .*", said, re.MULTILINE):
            print(f"  {line}")
    else:
        told = run_tests(checks, "RDMA", "Verbs.*:VerbsCards.*:VerbsDevices.*:VerbsOwn.*", 17, [])
        for line in re.findall(r"^(?:the end was|both ends were) told .*", told, re.MULTILINE):
            print(f"  {line}")
        measure(checks)
    checks.finish()


main()
