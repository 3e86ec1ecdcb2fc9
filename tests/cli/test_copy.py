"""sidestep copy: bytes really arrive, and the command says how."""

import unittest

import harness

MIB = 1 << 20


def splitmix_pattern(size):
    """The known pattern of memory sources, written here a second time."""
    mask = 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    for index in range((size + 7) // 8):
        word = (index + 1) * 0x9E3779B97F4A7C15 & mask
        word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & mask
        word = (word ^ (word >> 27)) * 0x94D049BB133111EB & mask
        out += (word ^ (word >> 31)).to_bytes(8, "little")
    return bytes(out[:size])


class FileToFile(harness.CommandTest):
    def test_whole_file(self):
        content = harness.bytes_that_differ(9 * MIB + 5)
        self.write("a", content)
        outcome = self.succeed("copy", "file:a", "file:b", "--verify")
        self.assertEqual((self.dir / "b").read_bytes(), content)
        self.assertEqual(self.names(), ["a", "b"])
        self.assertIn("verified", outcome.out)

    def test_replaces_a_longer_file(self):
        self.write("a", b"new")
        self.write("b", b"old and longer")
        self.succeed("copy", "file:a", "file:b")
        self.assertEqual((self.dir / "b").read_bytes(), b"new")

    def test_empty_file(self):
        self.write("a", b"")
        self.succeed("copy", "file:a", "file:b", "--verify")
        self.assertEqual((self.dir / "b").read_bytes(), b"")
        self.succeed("copy", "file:a", "gpu:0", "--verify")

    def test_range_to_whole_file(self):
        content = harness.bytes_that_differ(3 * MIB)
        self.write("a", content)
        self.succeed("copy", "file:a@4097+1MiB", "file:b")
        self.assertEqual((self.dir / "b").read_bytes(), content[4097 : 4097 + MIB])

    def test_range_in_place(self):
        content = harness.bytes_that_differ(MIB)
        old = bytes(3 * MIB)
        self.write("a", content)
        self.write("b", old)
        self.succeed("copy", "file:a@0+1000", "file:b@5+1000", "--verify")
        self.assertEqual((self.dir / "b").read_bytes(), old[:5] + content[:1000] + old[1005:])

    def test_range_grows_the_target_from_its_end(self):
        self.write("a", b"0123456789")
        self.write("b", b"old")
        self.succeed("copy", "file:a@0+4", "file:b@2+4")
        self.assertEqual((self.dir / "b").read_bytes(), b"ol0123")
        self.succeed("copy", "file:a@4+2", "file:b@6+2")
        self.assertEqual((self.dir / "b").read_bytes(), b"ol012345")

    def test_ranges_of_one_file_that_do_not_overlap(self):
        content = harness.bytes_that_differ(2 * MIB)
        self.write("a", content)
        self.succeed("copy", "file:a@0+1MiB", "file:a@1MiB+1MiB")
        self.assertEqual((self.dir / "a").read_bytes(), content[:MIB] * 2)

    def test_only_an_exact_range_is_one(self):
        for name in ["x@y", "x@1", "x@1+", "x@+2", "x@1+2x", "x@1-2"]:
            self.write(name, name.encode())
            self.succeed("copy", f"file:{name}", "file:out")
            self.assertEqual((self.dir / "out").read_bytes(), name.encode())

    def test_last_range_counts(self):
        self.write("x@1+2", b"0123456789")
        self.succeed("copy", "file:x@1+2@4+3", "file:out")
        self.assertEqual((self.dir / "out").read_bytes(), b"456")

    def test_options_of_files(self):
        content = harness.bytes_that_differ(5 * MIB + 17)
        self.write("a", content)
        self.succeed("copy", "file:a", "file:b", "--direct-io", "--sync", "--chunk", "64KiB", "--max-staging", "1MiB")
        self.assertEqual((self.dir / "b").read_bytes(), content)

    def test_keeps_the_mode_of_the_file_it_replaces(self):
        self.write("a", b"secret")
        self.write("b", b"old").chmod(0o600)
        self.succeed("copy", "file:a", "file:b")
        self.assertEqual((self.dir / "b").stat().st_mode & 0o777, 0o600)


class Memory(harness.CommandTest):
    def test_host_to_gpu(self):
        outcome = self.succeed("copy", "host", "gpu:0", "--size", "8MiB", "--verify")
        self.assertIn("8 MiB", outcome.out)
        self.assertIn("host -> gpu:0", outcome.out)
        self.assertIn("verified", outcome.out)

    def test_gpu_to_gpu(self):
        outcome = self.succeed("copy", "gpu:0", "gpu:5", "--size", "8MiB", "--verify")
        self.assertIn("gpu:0 -> gpu:5", outcome.out)

    def test_numa_node(self):
        self.succeed("copy", "host:1", "gpu:7", "--size", "1MiB", "--verify")

    def test_default_size(self):
        self.assertIn("256 MiB", self.succeed("copy", "host", "gpu:1").out)

    def test_emulated_rates_are_named_so(self):
        self.assertIn("emulated", self.succeed("copy", "gpu:0", "gpu:1", "--size", "1MiB").out)

    def test_odd_sizes(self):
        for size in [1, 7, 4095, 65537]:
            self.succeed("copy", "gpu:0", "gpu:1", "--size", size, "--verify")

    def test_engines(self):
        for engine in ["copy-engine", "kernel"]:
            self.succeed("copy", "gpu:0", "gpu:1", "--size", "1MiB", "--verify", "--prefer", engine)

    def test_repeat_reports_the_median(self):
        outcome = self.succeed("copy", "host", "gpu:0", "--size", "1MiB", "--repeat", "5")
        self.assertIn("median of 5 runs", outcome.out)
        self.assertEqual(outcome.out.count("\n"), 1)

    def test_the_median_of_an_even_number_lies_between_the_two_in_the_middle(self):
        copied = self.json_of("copy", "host", "gpu:0", "--size", "1MiB", "--repeat", "4")
        middle = [run["seconds"] for run in copied["runs"][1:3]]
        self.assertAlmostEqual(copied["seconds"], sum(middle) / 2, places=12)

    def test_explain_lists_hops(self):
        outcome = self.succeed("copy", "host", "gpu:0", "--size", "1MiB", "--explain")
        self.assertIn("lane 1 carried 1 MiB", outcome.out)

    def test_quiet_is_silent(self):
        outcome = self.succeed("copy", "host", "gpu:0", "--size", "1MiB", "--quiet")
        self.assertEqual((outcome.out, outcome.err), ("", ""))


class FilesAndMemory(harness.CommandTest):
    def test_file_to_gpu(self):
        self.write("a", harness.bytes_that_differ(20 * MIB + 3))
        outcome = self.succeed("copy", "file:a", "gpu:3", "--verify")
        self.assertIn("verified", outcome.out)
        self.assertIn("gpu:3", outcome.out)

    def test_memory_to_file_holds_the_pattern(self):
        size = MIB + 13
        expected = splitmix_pattern(size)
        for place in ["gpu:2", "host"]:
            self.succeed("copy", place, "file:out", "--size", size, "--verify")
            self.assertEqual((self.dir / "out").read_bytes(), expected)

    def test_memory_to_range_takes_the_size_of_the_range(self):
        self.write("a", bytes(MIB))
        self.succeed("copy", "gpu:0", "file:a@8+4096")
        self.assertEqual((self.dir / "a").read_bytes(), bytes(8) + splitmix_pattern(4096) + bytes(MIB - 4104))

    def test_file_to_host(self):
        self.write("a", harness.bytes_that_differ(3 * MIB))
        self.succeed("copy", "file:a", "host", "--verify")

    def test_machine_of_the_environment(self):
        env = harness.environment(SIDESTEP_MACHINE=harness.MACHINE)
        self.succeed("copy", "host", "gpu:7", "--size", "4KiB", machine=None, env=env)

    def test_emulated_memory_is_bounded(self):
        env = harness.environment(SIDESTEP_EMULATED_GPU_MEMORY="1MiB")
        self.refused(harness.FAILED, "gpu:0", "copy", "host", "gpu:0", "--size", "2MiB", env=env)


class Options(harness.CommandTest):
    def test_global_options_before_and_after_the_verb(self):
        size = ["--size", "4KiB"]
        machine = ["--machine", harness.MACHINE]
        for line in [
            machine + ["--verify", "copy", "host", "gpu:0"] + size,
            ["copy"] + machine + ["host", "--verify", "gpu:0"] + size,
            ["copy", "host", "gpu:0"] + size + ["--verify"] + machine,
        ]:
            self.assertIn("verified", self.succeed(*line, machine=None).out)

    def test_direct_is_taken_where_it_is(self):
        self.succeed("copy", "gpu:0", "gpu:1", "--size", "1MiB", "--require", "direct")

    def test_deadline_is_read(self):
        self.succeed("copy", "host", "gpu:0", "--size", "4KiB", "--deadline", "10m")


if __name__ == "__main__":
    unittest.main()
