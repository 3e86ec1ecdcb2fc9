"""Collects what is wrong, so that one boot shows all of it."""

import sys


class Checks:
    def __init__(self):
        self.done = 0
        self.wrong = 0

    def same(self, what, got, want):
        self.one_of(what, got, want)

    def one_of(self, what, got, *wanted):
        self.done += 1
        if got not in wanted:
            self.wrong += 1
            print(f"WRONG: {what}: {got!r}, expected {' or '.join(map(repr, wanted))}")

    def finish(self):
        """Ends the program: exit code 0 where something was checked and all of it is right."""
        print(f"{self.done} checks, {self.wrong} wrong")
        sys.exit(0 if self.done and not self.wrong else 1)
