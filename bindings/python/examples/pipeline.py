"""A pipeline: each rank is a stage, and passes its result for each micro-batch to the next rank.

The stream of a stage waits for a micro-batch, computes, writes the result into the next stage's memory, and notifies
the previous stage that the slot is free. The CPU enqueues all of it ahead, and waits once, at the end. If torch is
installed, torch.distributed compares the outcome.
"""

import importlib.util
from argparse import Namespace
from functools import partial
from typing import Any

import _common
import gdsync

SLOTS = 2  # micro-batches between two stages


def run(machine: _common.Machine, team: gdsync.Team, arguments: Namespace) -> None:
    stage, last, size = team.rank, team.size - 1, arguments.size
    inbox, outbox, results = machine.zeros(SLOTS, size), machine.zeros(SLOTS, size), machine.zeros(arguments.batches, size)
    # Notifications 0 to SLOTS - 1: a micro-batch is in the slot. From SLOTS on: the next stage has emptied it.
    segment = team.register(inbox, notifications=2 * SLOTS)
    source = machine.pd.register(outbox)
    slot_bytes = size * 4

    def compute(slot: int, batch: int) -> None:
        given = inbox[slot] if stage > 0 else inbox[slot] * 0 + batch
        outbox[slot] = given * 2 + stage
        results[batch] = outbox[slot]

    machine.warm(lambda: compute(0, 0))
    for batch in range(arguments.batches):
        slot = batch % SLOTS
        with machine.stream.batch() as b:
            if stage > 0:
                b.wait_notification(segment, slot)
            if stage < last and batch >= SLOTS:
                b.wait_notification(segment, SLOTS + slot)
        machine.run(partial(compute, slot, batch))
        with machine.stream.batch() as b:
            if stage > 0:
                b.notify(segment, rank=stage - 1, id=SLOTS + slot)
            if stage < last:
                part = source[slot * slot_bytes : (slot + 1) * slot_bytes]
                b.write_notify(part, rank=stage + 1, offset=slot * slot_bytes, id=slot, to=segment)
    machine.stream.synchronize(120)
    _common.leave(team)

    found = machine.numpy(results)
    for batch in range(arguments.batches):
        expected = batch
        for each in range(stage + 1):
            expected = expected * 2 + each
        assert (found[batch] == expected).all(), f"stage {stage}, micro-batch {batch}: {found[batch]}, not {expected}"
    if importlib.util.find_spec("torch"):
        compare(found[-1, 0], stage, last)
    if stage == last:
        print(f"{arguments.batches} micro-batches of {slot_bytes} bytes passed {team.size} stages on {machine.on}, all right")


def compare(value: Any, stage: int, last: int) -> None:
    """The same hand-over once more, by torch.distributed."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    received = torch.zeros(1)
    if stage > 0:
        dist.recv(received, src=stage - 1)
        assert value == received.item() * 2 + stage
    if stage < last:
        dist.send(torch.tensor([float(value)]), dst=stage + 1)
    dist.destroy_process_group()


if __name__ == "__main__":
    _common.main(run, ranks=4, batches=10, size=4096)
