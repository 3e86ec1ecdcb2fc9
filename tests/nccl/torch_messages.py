"""Messages and small collectives in random order, one process a GPU, every result compared.

    sidestep run -n 2 -- python3 tests/nccl/torch_messages.py --seconds 60
    torchrun --nproc-per-node 4 tests/nccl/torch_messages.py

It meets what sequences made by hand do not: sizes on both sides of where algorithms change, many sends with no wait in
between, ranks that are far ahead of others. All ranks draw the same numbers, so each knows what the others do. Rank 0
prints how many operations were right; a wrong byte ends the program. --device cpu runs it over gloo, to try the program
itself. Needs PyTorch and a GPU; exit code 77 and the reason where they are missing. Over the drop-in ranks may share a GPU,
which takes long.
"""

import argparse
import os
import random
import sys
import time


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(77)


try:
    import torch
    import torch.distributed as dist
except ImportError as error:
    skip(f"PyTorch is not installed: {error}")

SMALL = [1, 3, 64, 1000, 4096, 8192, 32768, 65535, 65536, 65537, 70000]
SIZES = SMALL + [131072, 300000, 1 << 20, 5 << 20]
BLOCKS = [0, 1, 5, 1000, 20000, 40000, 90000]  # of uneven all_to_all
FLOATS = [1, 100, 5000, 100000, 1000000]
ROUNDS_BETWEEN_LOOKS = 20  # at the clock


class Traffic:
    """Each method is one round of its kind, called by all ranks alike, and returns how many operations it was."""

    def __init__(self, device, seed):
        self.rank, self.world, self.device = dist.get_rank(), dist.get_world_size(), device
        self.random = random.Random(seed)

    def pattern(self, count, seed):
        return ((torch.arange(count, device=self.device) * 7 + seed) % 251).to(torch.uint8)

    def empty(self, count):
        return torch.full((count,), 255, dtype=torch.uint8, device=self.device)  # in no pattern

    def check(self, what, found, expected):
        if torch.equal(found, expected):
            return
        wrong = (found != expected).nonzero()
        raise AssertionError(f"rank {self.rank}: {what} of {expected.numel()} elements: {wrong.numel()} are wrong, "
                             f"the first is number {wrong[0].item()}")

    def ring(self):
        before, behind = (self.rank - 1) % self.world, (self.rank + 1) % self.world
        count = self.random.randrange(1, 40)
        under_way = []
        for i in range(count):
            size = self.random.choice(SIZES)
            out, back = self.pattern(size, self.rank * 31 + i), self.empty(size)
            pair = [dist.P2POp(dist.isend, out, behind), dist.P2POp(dist.irecv, back, before)]
            under_way.append((dist.batch_isend_irecv(pair), out, back, self.pattern(size, before * 31 + i)))
        for requests, _, back, expected in under_way:
            for request in requests:
                request.wait()
            self.check("a message of the ring", back, expected)
        return count

    def one_way(self):
        sender = self.random.randrange(self.world)
        receiver = (sender + 1 + self.random.randrange(self.world - 1)) % self.world
        sizes = [self.random.choice(SMALL) for _ in range(self.random.randrange(1, 60))]
        kept = []
        for i, size in enumerate(sizes):
            if self.rank == sender:
                kept.append(self.pattern(size, i))
                dist.send(kept[-1], receiver)
            elif self.rank == receiver:
                kept.append(self.empty(size))
                dist.recv(kept[-1], sender)
        if self.rank == receiver:
            for i, size in enumerate(sizes):
                self.check("a message one way", kept[i], self.pattern(size, i))
        return len(sizes)

    def uneven(self):
        ranks = range(self.world)
        sizes = [[self.random.choice(BLOCKS) for _ in ranks] for _ in ranks]  # [from][to]
        sent, received = sizes[self.rank], [row[self.rank] for row in sizes]
        out = torch.cat([self.pattern(sent[to], self.rank * self.world + to) for to in ranks])
        expected = torch.cat([self.pattern(received[of], of * self.world + self.rank) for of in ranks])
        count = self.random.randrange(1, 8)
        for _ in range(count):
            back = self.empty(sum(received))
            dist.all_to_all_single(back, out, received, sent)
            self.check("all_to_all", back, expected)
        return count

    def reductions(self):
        own = torch.full((self.random.choice(FLOATS),), float(self.rank + 1), device=self.device)
        count = self.random.randrange(1, 6)
        for _ in range(count):
            summed = own.clone()
            dist.all_reduce(summed)
            self.check("all_reduce", summed, torch.full_like(own, self.world * (self.world + 1) / 2))
        parts = [torch.empty(10, device=self.device) for _ in range(self.world)]
        dist.all_gather(parts, own[:1].repeat(10))
        for rank, part in enumerate(parts):
            self.check("all_gather", part, torch.full_like(part, rank + 1))
        return count + 1

    def until(self, end):
        """Rounds of every kind until rank 0's clock is at `end`: how many operations they were."""
        operations = rounds = 0
        over = torch.zeros(1, device=self.device)
        while over.item() == 0:
            for _ in range(ROUNDS_BETWEEN_LOOKS):
                operations += self.random.choice([self.ring, self.one_way, self.uneven, self.reductions])()
            rounds += ROUNDS_BETWEEN_LOOKS
            over.fill_(float(time.monotonic() > end))
            dist.broadcast(over, 0)
        return rounds, operations


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=30, help="how long (default: 30)")
    parser.add_argument("--seed", type=int, default=7, help="of the random numbers (default: 7)")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    options = parser.parse_args()
    device = torch.device("cpu")
    if options.device == "cuda":
        if not torch.cuda.is_available():
            skip("PyTorch sees no GPU")
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    dist.init_process_group("gloo" if options.device == "cpu" else "nccl")
    if dist.get_world_size() < 2:
        skip("there is nobody to send to: this is the only process")
    rounds, operations = Traffic(device, options.seed).until(time.monotonic() + options.seconds)
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks: {rounds} rounds, {operations} operations, all right", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
