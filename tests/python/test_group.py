"""Collectives of several ranks, a thread each, on emulated GPUs."""

import subprocess
import sys
import threading
import unittest

import sidestep
from package import MACHINE, PackageTest, environment, numpy

RANKS = 3


class GroupTest(PackageTest):
    def run_ranks(self, work, **how):
        """work(group, tensor maker) on each rank, in threads; what each gave."""
        given, failed, identity = [None] * RANKS, [], sidestep.new_group_id()

        def one(rank):
            def tensor(values):
                array = numpy.asarray(values, dtype="f4")
                made = self.context.allocate(f"gpu:{rank}", array.nbytes)
                self.context.copy(array, made)
                return made.view("F32", array.shape)

            try:
                with self.context.group(f"gpu:{rank}", id=identity, rank=rank, ranks=RANKS, timeout=20, **how) as group:
                    given[rank] = work(group, tensor)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(RANKS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failed:
            raise failed[0]
        return given

    def test_operations(self):
        def work(group, tensor):
            r = group.rank
            total, least, root = tensor([r + 1.0] * 5), tensor([r + 1.0] * 5), tensor([r, r])
            gathered, part, turned = tensor([0.0] * 2 * RANKS), tensor([0.0]), tensor([0.0] * RANKS)
            group.all_reduce(total)
            group.all_reduce(least, op="min")
            group.broadcast(root, root=2)
            group.all_gather(tensor([r, 10 + r]), gathered)
            group.reduce_scatter(tensor([1.0, 2.0, 3.0]), part)
            group.all_to_all(tensor([10 * r + i for i in range(RANKS)]), turned)
            group.wait()
            return [numpy.asarray(one).tolist() for one in (total, least, root, gathered, part, turned)]

        for rank, seen in enumerate(self.run_ranks(work)):
            self.assertEqual(seen, [[6.0] * 5, [1.0] * 5, [2.0, 2.0], [0.0, 10.0, 1.0, 11.0, 2.0, 12.0], [3.0 * (rank + 1)],
                                    [float(10 * r + rank) for r in range(RANKS)]])

    def test_messages(self):
        def work(group, tensor):
            mine = tensor([7.0, 8.0]) if group.rank == 0 else tensor([0.0, 0.0])
            if group.rank == 0:
                group.send(mine, 1)
            if group.rank == 1:
                group.recv(mine, 0)
            group.wait()
            return numpy.asarray(mine).tolist()

        self.assertEqual(self.run_ranks(work), [[7.0, 8.0], [7.0, 8.0], [0.0, 0.0]])

    def test_what_makes_no_sense(self):
        def work(group, tensor):
            a, b = tensor([1.0, 2.0]), tensor([1.0])
            for call in [lambda: group.all_reduce(a, b), lambda: group.all_gather(a, b), lambda: group.all_reduce(a, op="mean"),
                         lambda: group.all_reduce("text"), lambda: group.all_to_all(a, a), lambda: group.send(a, 99),
                         lambda: group.all_reduce(a, a.view("I32", (2,)))]:
                self.fails("invalid_argument", call)
            return repr(group)

        self.assertEqual(self.run_ranks(work), [f"<Group: rank {rank} of {RANKS} on gpu:{rank}>" for rank in range(RANKS)])

    def test_a_rank_alone(self):
        self.fails("timed_out", self.context.group, "gpu:0", id=sidestep.new_group_id(), rank=0, ranks=2, timeout=0.2)
        with self.assertRaises(TimeoutError):
            self.context.group("gpu:0", id=sidestep.new_group_id(), rank=0, ranks=2, timeout=0.2)
        self.fails("not_found", self.context.group)  # no launcher
        for given in ({"rank": 0}, {"ranks": 2}, {"rank": 1, "ranks": 2}):
            self.assertIn("new_group_id", str(self.fails("invalid_argument", self.context.group, **given)))

    def test_timeouts(self):
        # One that is too short for milliseconds is no wait without end.
        self.fails("timed_out", self.context.group, "gpu:0", id=sidestep.new_group_id(), rank=0, ranks=2, timeout=0.0005)
        for wrong in (float("nan"), -5, float("inf"), 1e300):
            error = self.fails("invalid_argument", self.context.group, "gpu:0", id=sidestep.new_group_id(), rank=0, ranks=2,
                               timeout=wrong)
            self.assertIn("timeout", error.message)

    def test_as_sidestep_run_starts_it(self):
        program = """
import sidestep
try:
    sidestep.Context().group(rank=0, ranks=1)
    print("taken for those of the launcher")
except sidestep.Error:
    pass
group = sidestep.Context().group()
tensor = group_memory = sidestep.allocate(group.place, 4).view("I32", (1,))
sidestep.copy((group.rank + 1).to_bytes(4, "little"), tensor)
group.all_reduce(tensor)
group.wait()
print(int.from_bytes(bytes(tensor), "little"))
"""
        done = subprocess.run([sys.executable, "-m", "sidestep", "--machine", MACHINE, "run", "--no-nccl", "--no-cufile", "-n", "2", "--",
                               sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False,
                              env=environment(SIDESTEP_PEER_FOLDER=str(self.folder / "peers")))
        self.assertEqual(sorted(done.stdout.split("\n")), ["", "[0] 3", "[1] 3"], done.stderr)


if __name__ == "__main__":
    unittest.main()
