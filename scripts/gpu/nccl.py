"""Collectives of NCCL between two GPUs over the software card, checked. Started by scripts/gpu/field, once for each rank.

Arguments: rank, ranks, port of the rendezvous on this host.
"""

import os
import sys

import torch
import torch.distributed as dist

rank, ranks, port = (int(argument) for argument in sys.argv[1:4])
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(ranks))
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))


def pattern(length: int, salt: int) -> torch.Tensor:
    """Whole numbers that every rank can compute, small enough to add exactly."""
    return (torch.arange(length, device="cuda", dtype=torch.int64) * 31 + salt * 7919) % 65521


def check(what: str, found: torch.Tensor, expected: torch.Tensor) -> None:
    if not torch.equal(found, expected):
        at = int((found != expected).nonzero()[0])
        sys.exit(f"rank {rank}: {what}: element {at} is {found[at].item()}, not {expected[at].item()}")


for length in (1, 1000, 1 << 17, 1 << 21, 1 << 23):
    for turn in range(3):
        sum_of_all = pattern(length, rank + turn)
        dist.all_reduce(sum_of_all)
        check("all_reduce", sum_of_all, sum(pattern(length, other + turn) for other in range(ranks)))
        parts = [pattern(length, 100 * rank + to + turn) for to in range(ranks)]
        from_all = [torch.empty_like(part) for part in parts]
        dist.all_to_all(from_all, parts)
        for other, part in enumerate(from_all):
            check("all_to_all", part, pattern(length, 100 * other + rank + turn))
        got = torch.empty(length, device="cuda", dtype=torch.int64)
        ahead, behind = (rank + 1) % ranks, (rank - 1) % ranks
        operations = [
            dist.P2POp(dist.isend, pattern(length, 1000 + rank + turn), ahead),
            dist.P2POp(dist.irecv, got, behind),
        ]
        for request in dist.batch_isend_irecv(operations):
            request.wait()
        check("send and receive", got, pattern(length, 1000 + behind + turn))
    torch.cuda.synchronize()
    print(f"rank {rank}: all_reduce, all_to_all, send and receive of {8 * length} bytes: right", flush=True)
dist.destroy_process_group()
