"""A server of KV-cache pages: rank 0 registers them once, and the others read those that they need, when they need them.

The server's CPU takes no part. A client's stream reads pages at random places, and computes with them after the reads.
"""

import random
import time
from argparse import Namespace
from typing import Any

import _common
import gdsync

PAGE = 64 << 10  # bytes


def run(machine: _common.Machine, team: gdsync.Team, arguments: Namespace) -> None:
    pages, reads = (arguments.mib << 20) // PAGE, arguments.reads
    words = PAGE // 4
    # The server's pages, or a client's slots for pages that it has read.
    own = machine.zeros(pages if team.rank == 0 else reads, words)
    if team.rank == 0:
        # Each page holds its number.
        for page in range(pages):
            own[page] = page
        machine.settle()
    segment = team.register(own)
    team.barrier()
    if team.rank > 0:
        client(machine, segment, own, pages, arguments)
    _common.leave(team)


def client(machine: _common.Machine, segment: gdsync.Segment, own: Any, pages: int, arguments: Namespace) -> None:
    choose = random.Random(arguments.seed)
    sums = machine.zeros(arguments.reads)

    def compute() -> None:
        sums[:] = own.max(axis=1) if machine.on != "torch" else own.amax(dim=1)

    machine.warm(compute)
    began, total = time.perf_counter(), 0
    for _ in range(arguments.rounds):
        wanted = [choose.randrange(pages) for _ in range(arguments.reads)]
        with machine.stream.batch() as b:
            for place, page in enumerate(wanted):
                b.read(segment[place * PAGE : (place + 1) * PAGE], rank=0, offset=page * PAGE)
            b.wait_writes(segment, 0)
        machine.run(compute)
        machine.stream.synchronize(120)
        total += len(wanted) * PAGE
        assert machine.numpy(sums).tolist() == wanted, "a page holds its number"
    seconds = time.perf_counter() - began
    rate = total / seconds / 1e9
    print(f"{total >> 20} MiB of random {PAGE >> 10} KiB pages read on {machine.on}, every page right: {rate:.2f} GB/s")


if __name__ == "__main__":
    _common.main(run, ranks=2, mib=256, reads=32, rounds=10, seed=1)
