"""A captured graph of all_reduces and others outside of it, in the order of the program alone, every result compared.

    sidestep run -n 2 -- python3 tests/nccl/torch_graphs.py
    torchrun --nproc-per-node 2 tests/nccl/torch_graphs.py

The graph is replayed on one stream, and the same number of operations follows at once on another, and the other way
around: nothing but the library keeps them in order. Rank 0 prints how many results were right; a wrong one ends the
program. Ranks may share a GPU, which takes long. Needs PyTorch and a GPU; exit code 77 and the reason where they are
missing.
"""

import argparse
import os
import sys


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(77)


try:
    import torch
    import torch.distributed as dist
except ImportError as error:
    skip(f"PyTorch is not installed: {error}")

OPERATIONS, ROUNDS = 20, 5


class Sums:
    """OPERATIONS buffers of this rank, and what their sums over all ranks are."""

    def __init__(self, elements, first):
        ranks = range(dist.get_world_size())
        self.given = [torch.full((elements,), float(first + i + dist.get_rank()), device="cuda")
                      for i in range(OPERATIONS)]
        self.expected = [float(sum(first + i + rank for rank in ranks)) for i in range(OPERATIONS)]
        self.sums = [torch.empty_like(one) for one in self.given]

    def run(self):
        for given, result in zip(self.given, self.sums):
            result.copy_(given)
            dist.all_reduce(result)

    def check(self, where):
        for i, (result, expected) in enumerate(zip(self.sums, self.expected)):
            wrong = int((result != expected).sum())
            if wrong:
                raise AssertionError(f"rank {dist.get_rank()}: {where}, operation {i}: {wrong} of {result.numel()} "
                                     f"elements are not {expected}, the first of them is {result[result != expected][0]}")
            result.fill_(-1)
        return OPERATIONS


def compare(elements):
    captured, eager = Sums(elements, 1), Sums(elements, 100)
    graph, one, other = torch.cuda.CUDAGraph(), torch.cuda.Stream(), torch.cuda.Stream()
    captured.run()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=one):
        captured.run()
    right = 0
    for number in range(ROUNDS):
        torch.cuda.synchronize()
        for graphs_turn in ((True, False) if number % 2 == 0 else (False, True)):
            with torch.cuda.stream(one if graphs_turn else other):
                graph.replay() if graphs_turn else eager.run()
        torch.cuda.synchronize()
        right += captured.check(f"in a graph, {elements} elements") + eager.check(f"on a stream, {elements} elements")
    return right


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", type=int, nargs="+", default=[256, 64 << 10, 1 << 20, 32 << 20], help="in bytes")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        skip("there is no GPU")
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    dist.init_process_group("nccl")
    right = sum(compare(size // 4) for size in options.sizes)
    if dist.get_rank() == 0:
        print(f"{right} results of all_reduce in graphs and beside them, all right")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
