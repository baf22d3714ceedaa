"""Jacobi iterations on a grid whose rows the ranks share: CuPy on GPUs, NumPy without.

After each step, a rank writes its first and its last row into the halos of its neighbours. Two grids take turns, and so do
the notifications: a neighbour that writes step t + 2 has seen step t + 1, which was sent when step t had been read.
"""

from argparse import Namespace
from functools import partial

import _common
import gdsync


def run(machine: _common.Machine, team: gdsync.Team, arguments: Namespace) -> None:
    rank, rows, columns = team.rank, arguments.rows, arguments.columns
    above, below = (rank - 1) % team.size, (rank + 1) % team.size  # the grid is a ring of rows
    row = columns * 4
    # Rows 0 and rows + 1 are the halos. Notifications of a grid: 0 from above, 1 from below.
    grids = [machine.zeros(rows + 2, columns) for _ in range(2)]
    segments = [team.register(grid, notifications=2) for grid in grids]

    def exchange(grid: int) -> None:
        segment = segments[grid]
        with machine.stream.batch() as b:
            b.write_notify(segment[row : 2 * row], rank=above, offset=(rows + 1) * row, id=1)
            b.write_notify(segment[rows * row : (rows + 1) * row], rank=below, offset=0, id=0)
            b.wait_notification(segment, 0)
            b.wait_notification(segment, 1)

    def begin() -> None:
        for one in range(1, rows + 1):
            grids[0][one] = (rank * rows + one - 1) % 7

    def compute(step: int) -> None:
        old, new = grids[step % 2], grids[(step + 1) % 2]
        new[1:-1] = (old[:-2] + old[2:]) / 2

    machine.warm(begin, lambda: compute(0))
    machine.run(begin)
    exchange(0)
    for step in range(arguments.steps):
        machine.run(partial(compute, step))
        exchange((step + 1) % 2)
    machine.stream.synchronize(120)
    _common.leave(team)

    found = machine.numpy(grids[arguments.steps % 2])[1:-1]
    values = [float(one % 7) for one in range(rows * team.size)]
    for _ in range(arguments.steps):
        values = [(values[one - 1] + values[(one + 1) % len(values)]) / 2 for one in range(len(values))]
    for one in range(rows):
        expected = values[rank * rows + one]
        assert abs(found[one] - expected).max() < 1e-4, f"row {one}: {found[one, 0]}, not {expected}"
    if rank == 0:
        print(f"{arguments.steps} steps of {rows * team.size} rows on {team.size} ranks, on {machine.on}: all rows right")


if __name__ == "__main__":
    _common.main(run, ranks=3, rows=32, columns=512, steps=50)
