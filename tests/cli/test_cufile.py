"""sidestep cufile stats: what processes count that run over the library that stands in for cuFile.

A page of that memory is made here by hand; tests/cufile has those that the library makes."""

import fcntl
import os
import re
import struct
import unittest

import harness

# CountsPage of shims/cufile/calls.hpp
MAGIC = 0x3130464353
KINDS = ["read", "write", "readv", "writev", "batch_read", "batch_write", "stream_read", "stream_write"]
MEMBERS = ["done", "failed", "bytes", "nanoseconds", "direct", "gpu_direct_bytes", "o_direct_bytes", "page_cache_bytes", "misses"]
WORDS = len(KINDS) * len(MEMBERS) + 16 * 2 * 7 + 2 * 32 + 10 * 3  # of a shard, whose size is whole cache lines
SHARDS, HEAD, SHARD = 16, 64, (WORDS * 8 + 63) // 64 * 64
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def page(counts=(), magic=MAGIC, process=None):
    """`counts`: tuples of shard, place and value."""
    data = bytearray(HEAD + SHARDS * SHARD)
    struct.pack_into("<QQ", data, 0, magic, os.getpid() if process is None else process)
    for shard, at, value in counts:
        struct.pack_into("<Q", data, HEAD + shard * SHARD + at * 8, value)
    return bytes(data)


def place(kind, member):
    return KINDS.index(kind) * len(MEMBERS) + MEMBERS.index(member)


class Stats(harness.CommandTest):
    def share(self, data, name="sidestep-cufile", seals=SEALS):
        memory = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self.addCleanup(os.close, memory)
        os.write(memory, data)
        fcntl.fcntl(memory, fcntl.F_ADD_SEALS, seals)
        return memory

    def mine(self):
        return [one for one in self.json_of("cufile", "stats")["processes"] if one["process"] == os.getpid()]

    def test_sums_of_the_shards_by_way(self):
        counts = [(0, place("read", "done"), 3), (7, place("read", "done"), 4), (1, place("read", "failed"), 1),
                  (2, place("read", "bytes"), 3 << 20), (2, place("read", "o_direct_bytes"), 2 << 20),
                  (3, place("read", "page_cache_bytes"), 1 << 20), (0, place("read", "nanoseconds"), 8000),
                  (15, place("batch_write", "done"), 9)]
        self.share(page(counts))
        found = self.mine()
        self.assertEqual(len(found), 1)
        self.assertEqual(found[0]["operations"]["read"],
                         {"done": 7, "failed": 1, "bytes": 3 << 20, "seconds": 8e-6, "gpu_direct_bytes": 0,
                          "o_direct_bytes": 2 << 20, "page_cache_bytes": 1 << 20})
        self.assertEqual(found[0]["operations"]["batch_write"]["done"], 9)
        text = self.succeed("cufile", "stats", os.getpid()).out
        self.assertRegex(text, rf"^process {os.getpid()}, .*\n")
        self.assertRegex(text, r"\n  read +7 +1 +3 MiB +- +2 MiB +1 MiB +1\.0+ us\n")
        self.assertNotRegex(text, r"\n  write")

    def test_nothing_done_yet(self):
        self.share(page())
        self.assertIn("nothing read or written yet", self.succeed("cufile", "stats", os.getpid()).out)

    def test_memory_that_is_something_else_is_passed_over(self):
        good = page([(0, 0, 1)])
        for what, data, how in [("another name", good, {"name": "sidestep-other"}),
                                ("may be cut short", good, {"seals": fcntl.F_SEAL_GROW}),
                                ("too short", good[:-8], {}),
                                ("too long", good + bytes(8), {}),
                                ("another version", page([(0, 0, 1)], magic=MAGIC + 1), {}),
                                ("of the parent", page([(0, 0, 1)], process=os.getppid()), {})]:
            with self.subTest(what):
                self.share(data, **how)
                self.assertEqual(self.mine(), [])
                self.refused(harness.USAGE, [str(os.getpid()), "sidestep run"], "cufile", "stats", os.getpid())
        self.share(good)  # beside all of them
        self.assertEqual(len(self.mine()), 1)

    def test_refused(self):
        self.refused(harness.USAGE, "no process 4194305", "cufile", "stats", "4194305")  # more than the kernel has
        self.refused(harness.USAGE, "PROCESS = x", "cufile", "stats", "x")
        self.refused(harness.USAGE, "'other'", "cufile", "other")

    def test_none_and_without_the_word_stats(self):
        outcome = self.succeed("cufile")
        if not re.match(r"process \d", outcome.out):  # somebody else's tests may run
            self.assertEqual(outcome.out, "no process of this user runs over Sidestep's cuFile\n")


if __name__ == "__main__":
    unittest.main()
