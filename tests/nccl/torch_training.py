"""A few steps of training with DistributedDataParallel and with fully sharded data parallelism, one process a GPU.

    sidestep run -n 4 -- python3 tests/nccl/torch_training.py            # over the drop-in
    sidestep run -n 4 --no-nccl -- python3 tests/nccl/torch_training.py  # over NCCL, to compare
    torchrun --nproc-per-node 4 tests/nccl/torch_training.py

Rank 0 prints which library ran, and the losses as exact hexadecimal floats: the same bits between two runs of the same
library, and the same losses within rounding between libraries (the order of additions differs). Needs PyTorch and a GPU;
exit code 77 and the reason where they are missing. Over the drop-in ranks may share a GPU, which takes long.
"""

import os
import sys


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(77)


try:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
except ImportError as error:
    skip(f"PyTorch is not installed: {error}")

WIDTH, BATCH, STEPS = 512, 64, 8


def model():
    torch.manual_seed(1)
    layers = []
    for _ in range(4):
        layers += [torch.nn.Linear(WIDTH, WIDTH), torch.nn.LayerNorm(WIDTH), torch.nn.GELU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, 16)).cuda()


def batches(rank):
    source = torch.Generator().manual_seed(100 + rank)
    for _ in range(STEPS):
        yield torch.randn(BATCH, WIDTH, generator=source).cuda(), torch.randint(16, (BATCH,), generator=source).cuda()


def train(wrapped, rank):
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-3)
    losses = []
    for inputs, targets in batches(rank):
        loss = torch.nn.functional.cross_entropy(wrapped(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(total.item() / dist.get_world_size())
    return losses


def sharded(module):
    from torch.distributed.fsdp import fully_shard

    for layer in module:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer)
    return fully_shard(module)


def loaded_nccl():
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return sorted({line.split()[-1] for line in maps if "libnccl" in line})


def main():
    if not torch.cuda.is_available():
        skip("PyTorch sees no GPU")
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count()
    torch.cuda.set_device(local)
    torch.use_deterministic_algorithms(True, warn_only=True)
    dist.init_process_group("nccl", device_id=torch.device("cuda", local))
    runs = {
        "ddp": lambda: train(DistributedDataParallel(model(), device_ids=[local]), rank),
        "fsdp": lambda: train(sharded(model()), rank),
    }
    for name, run in runs.items():
        first, second = run(), run()
        if rank == 0:
            print(name, " ".join(loss.hex() for loss in first))
            print(name, "last loss", first[-1], "the same bits again:", first == second, flush=True)
    if rank == 0:
        print("library:", " ".join(loaded_nccl()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
