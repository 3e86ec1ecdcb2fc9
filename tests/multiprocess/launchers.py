"""Groups under the launchers that people use, as they are: what a rank finds in its environment, that the ranks find each
other and sum right, and that those that are left say who was killed. GPUs are emulated. A launcher that is not there is
skipped; `sidestep run` always is."""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

BINARY = os.environ["SIDESTEP_BINARY"]
PROGRAM = os.environ["SIDESTEP_LAUNCHED"]
RANKS = 4
VICTIM = 2
LIMIT_SECONDS = 120


def version_of(command):
    """What the command says of itself; empty where it is not on PATH."""
    if shutil.which(command) is None:
        return ""
    done = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
    return done.stdout + done.stderr


class Launcher:
    """The tests that follow, for one launcher."""

    leaves_the_others_time = True  # else it kills them at once, and they may not have said anything yet
    fails_without_a_rank = True

    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="sidestep-test-"))
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        # No rank of another launcher, where this test is started by one.
        self.env = {name: value for name, value in os.environ.items()
                    if not re.match(r"SIDESTEP_|OMPI_|PMIX?_|MPI_|SLURM_|(RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE)$", name)}
        self.env.update(SIDESTEP_MACHINE="dgx-h100", SIDESTEP_PEER_FOLDER=str(self.dir / "peers"), SIDESTEP_GROUP_TIMEOUT="60")

    def launch(self, victim):
        done = subprocess.run(self.words() + [PROGRAM, "--launched", str(self.dir), str(victim)], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=LIMIT_SECONDS, env=self.env, cwd=self.dir, check=False)
        said = {path.name: path.read_text().strip() for path in self.dir.glob("rank*")}
        return done, said

    def test_all_ranks_meet_and_sum_right(self):
        done, said = self.launch(-1)
        self.assertEqual(said, {f"rank{rank}": f"rank {rank} of {RANKS} on gpu:{rank}: right" for rank in range(RANKS)},
                         done.stdout + done.stderr)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_the_others_say_who_was_killed(self):
        done, said = self.launch(VICTIM)
        left = {f"rank{rank}" for rank in range(RANKS) if rank != VICTIM}
        if self.leaves_the_others_time:
            self.assertEqual(set(said), left, done.stdout + done.stderr)
        self.assertLessEqual(set(said), left)
        for text in said.values():
            self.assertRegex(text, rf"^rank {VICTIM} \(process \d+, gpu:{VICTIM}\) died; "
                                   r"its last one was operation 3, all_reduce 100003 i32 sum"
                                   r"(, and rank \d \(process \d+, gpu:\d\) is in operation [34], all_reduce \d+ i32 sum)?$")
        if self.fails_without_a_rank:
            self.assertNotEqual(done.returncode, 0)


class SidestepRun(Launcher, unittest.TestCase):
    def words(self):
        return [BINARY, "run", "--no-nccl", "--no-cufile", "-n", str(RANKS), "--"]


class OpenMpi(Launcher, unittest.TestCase):
    fails_without_a_rank = False  # it is told to go on without it

    def words(self):
        version = version_of("mpirun")
        if not version:
            self.skipTest("mpirun is not on PATH: tools/setup.sh launchers installs Open MPI's")
        if "open" not in version.lower():
            self.skipTest(f"mpirun is not Open MPI's: {version.splitlines()[0]}")
        # As root, on any number of cores, and where there is no ssh; without recovery it would end the others before they have said anything.
        return ["mpirun", "--mca", "plm", "isolated", "--allow-run-as-root", "--oversubscribe", "--enable-recovery", "-n", str(RANKS)]


class Hydra(Launcher, unittest.TestCase):
    """MPICH's launcher; Intel MPI's is made of it."""

    leaves_the_others_time = False

    def words(self):
        if not version_of("mpiexec.hydra"):
            self.skipTest("mpiexec.hydra, of MPICH, is not on PATH")
        return ["mpiexec.hydra", "-n", str(RANKS)]


class Srun(Launcher, unittest.TestCase):
    def words(self):
        if not version_of("srun"):
            self.skipTest("srun is not on PATH")
        if subprocess.run(["sinfo"], capture_output=True, timeout=LIMIT_SECONDS, check=False).returncode != 0:
            self.skipTest("srun finds no controller of Slurm")
        return ["srun", f"--ntasks={RANKS}", "--nodes=1", "--kill-on-bad-exit=0"]


class Torchrun(Launcher, unittest.TestCase):
    def words(self):
        if shutil.which("torchrun") is None:
            self.skipTest("torchrun is not on PATH: there is no PyTorch here")
        return ["torchrun", "--standalone", f"--nproc-per-node={RANKS}", "--no-python"]


if __name__ == "__main__":
    unittest.main()
