"""Hours of a training run in minutes: stragglers, graphs and streams mixed, communicators made and dropped.

    sidestep run -n 3 -- python3 tests/nccl/torch_soak.py --minutes 30
    torchrun --nproc-per-node 3 tests/nccl/torch_soak.py --minutes 5 --straggler 20

Weights are trained by gradients that every rank can compute for all others, so each step is compared with the bits of a
reference: sums in the order of ranks, in 32 bits, rounded once. All ranks draw the same random numbers. Now and then one of
them sleeps; each minute a communicator is made, used and dropped, and memory, descriptors and threads are counted, which
must not grow. Ranks may share a GPU. Rank 0 prints what was done; a wrong bit or a leak ends the program. Needs PyTorch and
a GPU; exit code 77 and the reason where they are missing.
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

SIZES = [1, 300, 4096, 70_000, 1 << 20, 3_000_001]  # elements of a layer
RATE = 2.0 ** -10
WARM_UP = 3  # communicators that are made before anything is counted
MIB = 1 << 20


def gradients(weights, step, rank):
    """Of one layer, the same wherever they are computed: no operation here depends on the order of threads."""
    return torch.frac(weights * (rank + 3) + (step % 97) * 0.37) - 0.5


def summed(parts, dtype):
    total = parts[0].to(dtype).float()
    for part in parts[1:]:
        total = total + part.to(dtype).float()
    return total.to(dtype)


class Layer:
    """Weights trained over the library, and the same ones trained by the reference."""

    def __init__(self, elements, dtype):
        self.dtype, self.graph = dtype, None
        self.weights = torch.linspace(-1, 1, elements, device="cuda")
        self.reference = self.weights.clone()
        self.gradient = torch.zeros(elements, dtype=dtype, device="cuda")

    def capture(self):
        self.graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(self.graph):
            dist.all_reduce(self.gradient)

    def step(self, step, rank, world, through_graph):
        self.gradient.copy_(gradients(self.weights, step, rank))
        if through_graph and self.graph:
            self.graph.replay()
        else:
            dist.all_reduce(self.gradient)
        self.weights -= RATE * self.gradient.float()
        parts = [gradients(self.reference, step, other) for other in range(world)]
        self.reference -= RATE * summed(parts, self.dtype).float()

    def check(self, step):
        if not torch.equal(self.weights.view(torch.int32), self.reference.view(torch.int32)):
            wrong = int((self.weights != self.reference).sum())
            raise AssertionError(f"rank {dist.get_rank()}, step {step}: {wrong} of {self.weights.numel()} weights of "
                                 f"{self.dtype} are not those of the reference")


def counted():
    with open("/proc/self/status") as file:
        status = dict(line.split(":", 1) for line in file)
    free, total = torch.cuda.mem_get_info()
    return {"descriptors": len(os.listdir("/proc/self/fd")), "threads": int(status["Threads"]),
            "host MiB": int(status["VmRSS"].split()[0]) // 1024, "GPU MiB": (total - free) // MIB}


# What may come and go: a thread on its way out, the allocators' own caches.
ALLOWED = {"descriptors": 4, "threads": 4, "host MiB": 64, "GPU MiB": 128}


def use_another_communicator(number, rank, world):
    group = dist.new_group(list(range(world)))
    values = torch.full((1000 + number,), float(rank + number), device="cuda")
    dist.all_reduce(values, group=group)
    expected = float(sum(other + number for other in range(world)))
    if not bool((values == expected).all()):
        raise AssertionError(f"rank {rank}: a sum over communicator {number} is wrong")
    torch.cuda.synchronize()
    dist.destroy_process_group(group)


def run(options):
    rank, world = dist.get_rank(), dist.get_world_size()
    drawn = random.Random(options.seed)  # alike on all ranks
    layers = [Layer(size, dtype) for size in SIZES for dtype in (torch.float32, torch.bfloat16)]
    for layer in layers:
        dist.all_reduce(layer.gradient)  # before a capture, as PyTorch asks for
        layer.capture()
    steps = communicators = slept = 0
    first, peak = None, {}
    began = time.monotonic()
    stop = torch.zeros(1, device="cuda")
    next_communicator = began
    while True:
        sleeper, pause = drawn.randrange(world), drawn.random() * options.straggler
        if drawn.random() < options.often:
            slept = max(slept, pause)
            if sleeper == rank:
                time.sleep(pause)
        order = drawn.sample(layers, len(layers))
        for layer in order:
            layer.step(steps, rank, world, drawn.random() < 0.5)
        steps += 1
        stop.fill_(time.monotonic() - began > 60 * options.minutes)
        due = torch.full_like(stop, time.monotonic() >= next_communicator)
        dist.broadcast(stop, 0)
        dist.broadcast(due, 0)
        for layer in layers:
            layer.check(steps)
        if due.item():
            use_another_communicator(communicators, rank, world)
            communicators += 1
            next_communicator = time.monotonic() + options.every
            now = counted()
            if communicators == WARM_UP:
                first = now
            elif first:
                peak = {name: max(now[name] - first[name], peak.get(name, 0)) for name in now}
                # What grows all the time is more at the end than the allowance; what is only higher once is not.
                grown = {name: now[name] - first[name] for name in now if now[name] - first[name] > ALLOWED[name]}
                if grown:
                    raise AssertionError(f"rank {rank}: after {communicators} communicators there are more of {grown}")
        if stop.item():
            return steps, communicators, slept, peak


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--straggler", type=float, default=90, help="the longest sleep, in seconds")
    parser.add_argument("--often", type=float, default=0.01, help="the chance of a sleep in a step")
    parser.add_argument("--every", type=float, default=60, help="seconds between communicators")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        skip("there is no GPU")
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    dist.init_process_group("nccl")
    steps, communicators, slept, peak = run(options)
    if dist.get_rank() == 0:
        print(f"{steps} steps of {2 * len(SIZES)} layers, the bits of the reference; {communicators} communicators made "
              f"and dropped; the longest sleep {slept:.0f} s; at most more than after the first {WARM_UP}: {peak}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
