"""sidestep doctor --peer NODE: both ends of the way to a node."""

import json
import unittest

import harness
from harness import FAILED, USAGE

WARNINGS = 4


class Peer(harness.NodeTest):
    def test_both_ends_and_real_bytes(self):
        self.serve("--allow", self.allow)
        outcome = self.run_command("doctor", "--peer", "n", "--size", "1MiB", "--json", env=self.env)
        self.assertIn(outcome.code, (0, WARNINGS), outcome.err + outcome.out)
        found = json.loads(outcome.out)
        self.assertEqual(found["machine"], "n")
        findings = {finding["id"]: finding for finding in found["findings"]}
        for name in ("end-software", "end-engine", "end-mtu", "end-clock", "end-copy-host", "end-copy-gpu-7"):
            self.assertIn(name, findings)
            self.assertEqual(findings[name]["group"], "network")
        for name in ("end-copy-host", "end-copy-gpu-0"):
            self.assertEqual(findings[name]["verdict"], "pass", findings[name])
            self.assertIn("1 MiB of random bytes", findings[name]["summary"])
        text = self.run_command("doctor", "--peer", "n", "--size", "4KiB", env=self.env).out
        self.assertTrue(text.startswith("looking at both ends of the way to n, with copies of 4 KiB each way\nmachine n: "), text)
        self.assertIn(f"\n{len(findings)} checks: ", text)
        self.assertNotIn("seen     software", text)
        self.assertIn("seen     software here", self.run_command("doctor", "--peer", "n", "--size", "4KiB", "--all", env=self.env).out)

    def test_what_fails_is_the_exit_code(self):
        self.serve("--allow", "host=4KiB")
        outcome = self.run_command("doctor", "--peer", "n", "--size", "8KiB", env=self.env)
        self.assertEqual(outcome.code, FAILED, outcome.err)
        self.assertIn("fail     end-copy-host", outcome.out)
        self.assertIn("-        end-copy-gpu-0", outcome.out)

    def test_one_error(self):
        self.serve("--allow", self.allow)
        for arguments, words in ((("doctor", "--peer", "nosuch.invalid"), "sidestep serve"),
                                 (("doctor", "--peer", "n", "--probe"), "--probe"),
                                 (("doctor", "--peer", "n", "--save", "file"), "--save"),
                                 (("doctor", "--peer", "a b"), "is not a place")):
            with self.subTest(arguments=arguments):
                outcome = self.run_command(*arguments, env=self.env)
                self.assertEqual(outcome.code, USAGE, outcome.err)
                self.assertIn(words, outcome.err)
                self.assertEqual(outcome.err.count("\n"), 1, outcome.err)


if __name__ == "__main__":
    unittest.main()
