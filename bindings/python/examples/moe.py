"""Tokens of a mixture of experts: every rank sends each of its tokens to the rank of its expert, and gets it back.

A block of tokens from each rank to each, by notified writes: the receiver posts no receives, and its stream computes
when the block is there. A router determines the blocks' contents; empty slots are zeroes.
"""

from argparse import Namespace
from functools import partial

import _common
import gdsync


def run(machine: _common.Machine, team: gdsync.Team, arguments: Namespace) -> None:
    rank, ranks, capacity, width = team.rank, team.size, arguments.capacity, arguments.width
    block = capacity * width * 4  # bytes of the tokens from one rank to another
    # Tokens by their expert's rank, and by their source rank.
    outgoing, arrived, answers = (machine.zeros(ranks, capacity, width) for _ in range(3))
    back = machine.zeros(ranks, capacity, width)
    there = team.register(arrived, notifications=ranks)  # tokens on the way to their experts
    home = team.register(back, notifications=ranks)  # tokens on the way back
    tokens, answered = machine.pd.register(outgoing), machine.pd.register(answers)

    def route(step: int) -> None:
        for expert in range(ranks):
            outgoing[expert, : capacity - expert % 2] = 100 * step + 10 * rank + expert

    def compute() -> None:
        answers[:] = arrived * 2 + (arrived != 0) * (rank + 1)

    machine.warm(lambda: route(0), compute)
    for step in range(arguments.steps):
        machine.run(partial(route, step))
        with machine.stream.batch() as b:
            for expert in range(ranks):
                part = tokens[expert * block : (expert + 1) * block]
                b.write_notify(part, rank=expert, offset=rank * block, id=rank, to=there)
            for source in range(ranks):
                b.wait_notification(there, source)
        machine.run(compute)
        with machine.stream.batch() as b:
            for source in range(ranks):
                part = answered[source * block : (source + 1) * block]
                b.write_notify(part, rank=source, offset=rank * block, id=rank, to=home)
            for expert in range(ranks):
                b.wait_notification(home, expert)
        machine.stream.synchronize(120)

        found = machine.numpy(back)
        for expert in range(ranks):
            sent = 100 * step + 10 * rank + expert
            expected = sent * 2 + (expert + 1) if sent else 0
            filled = capacity - expert % 2
            assert (found[expert, :filled] == expected).all(), f"step {step}, expert {expert}: {found[expert, 0, 0]}"
            assert (found[expert, filled:] == 0).all()
    _common.leave(team)
    if rank == 0:
        print(f"{arguments.steps} steps of {ranks} ranks, {block} bytes from each to each, on {machine.on}: all tokens right")


if __name__ == "__main__":
    _common.main(run, ranks=4, steps=10, capacity=16, width=256)
