"""A program of torch.distributed: a pipeline, an all-to-all of experts, and gradients that are reduced.

It knows nothing of gdsync: ``torchrun --nproc-per-node 4 torch_distributed.py --backend gdsync`` prints what ``--backend gloo`` does,
and on GPUs, with ``--device cuda``, what ``--backend nccl`` does. All numbers are such that sums have no rounding.
"""

from __future__ import annotations

import argparse
import hashlib
import os
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS, BATCHES, WIDTH, TOKENS = 3, 4, 64, 48


def whole(*shape: int, seed: int, device: torch.device) -> torch.Tensor:
    """Whole numbers from -2 to 2, the same on each machine."""
    count = 1
    for extent in shape:
        count *= extent
    numbers = (torch.arange(count, dtype=torch.int64) * (2 * seed + 7919) + seed * seed) % 104729 % 5 - 2
    return numbers.reshape(shape).to(torch.float64).to(device)


def pipeline(step: int, device: torch.device) -> torch.Tensor:
    """Micro-batches pass the ranks, each of which is a stage, and come back to the first from the last."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    weight = whole(WIDTH, WIDTH, seed=rank, device=device)
    results = []
    ahead: list[Any] = []
    for batch in range(BATCHES):
        if rank == 0:
            arrived = whole(8, WIDTH, seed=100 * step + batch, device=device)
        else:
            arrived = torch.empty(8, WIDTH, dtype=torch.float64, device=device)
            dist.recv(arrived, rank - 1)
        # Small again, so that the numbers of many stages stay whole ones.
        done = torch.remainder(arrived @ weight, 17.0)
        if rank < ranks - 1:
            ahead.append((dist.isend(done, rank + 1), done))
        results.append(done)
    for work, _ in ahead:
        work.wait()
    last = torch.stack(results)
    first = torch.empty_like(last)
    operations = []
    if rank == ranks - 1:
        operations.append(dist.P2POp(dist.isend, last, 0))
    if rank == 0:
        operations.append(dist.P2POp(dist.irecv, first, ranks - 1))
    for work in dist.batch_isend_irecv(operations) if operations else []:
        work.wait()
    return first if rank == 0 else last


def experts(step: int, device: torch.device) -> torch.Tensor:
    """Each token goes to the rank of its expert, and comes back."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    tokens = whole(TOKENS, WIDTH, seed=1000 * step + rank, device=device)
    expert = (torch.arange(TOKENS, device=device) * (rank + 3) + step) % (ranks + 1) % ranks
    order = torch.argsort(expert, stable=True)
    sent = torch.bincount(expert, minlength=ranks)
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    there, here = sent.tolist(), received.tolist()
    arrived = torch.empty(sum(here), WIDTH, dtype=torch.float64, device=device)
    dist.all_to_all_single(arrived, tokens[order], here, there)
    answers = arrived * 2 + rank
    back = torch.empty_like(tokens)
    dist.all_to_all_single(back, answers, there, here)
    result = torch.empty_like(back)
    result[order] = back
    return result


def gradients(device: torch.device) -> torch.Tensor:
    """Data parallelism by torch's own wrapper, and by shards of the weights."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, 1)).to(device, torch.float64)
    with torch.no_grad():
        # Of rank 0, whose weights the wrapper sends to the others.
        for place, parameter in enumerate(model.parameters()):
            parameter.copy_(whole(*parameter.shape, seed=place + 10 * rank, device=device))
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=2.0**-10)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = wrapped(whole(16, WIDTH, seed=50 * step + rank, device=device)).sum()
        loss.backward()
        optimizer.step()
    weights = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    shard = torch.empty(-(-len(weights) // ranks), dtype=torch.float64, device=device)
    padded = torch.zeros(len(shard) * ranks, dtype=torch.float64, device=device)
    padded[: len(weights)] = weights * (rank + 1)
    dist.reduce_scatter_tensor(shard, padded)
    work = dist.all_gather_into_tensor(padded, shard, async_op=True)
    assert work is not None
    work.wait()
    return padded


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="gdsync")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    if arguments.device == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    dist.init_process_group(arguments.backend)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    halves: list[Any] = [dist.new_group([one for one in range(ranks) if one % 2 == half]) for half in range(min(2, ranks))]

    found = [result for step in range(STEPS) for result in (pipeline(step, device), experts(step, device))]
    found.append(gradients(device))
    sums = torch.stack([result.sum() for result in found])
    dist.all_reduce(sums, group=halves[rank % 2])
    dist.barrier()
    digest = hashlib.sha256()
    for result in [*found, sums]:
        digest.update(result.cpu().numpy().tobytes())
    digests: list[Any] = [None] * ranks
    dist.all_gather_object(digests, digest.hexdigest()[:16])
    dist.destroy_process_group()
    if rank == 0:
        print(f"{ranks} ranks: {' '.join(digests)}", flush=True)


if __name__ == "__main__":
    main()
