"""The backend of torch.distributed, on CPU tensors. Skipped without torch, which is large: `.ci/rotation` installs it."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import gdsync
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

HERE = Path(__file__).parent
EXAMPLE = HERE.parent / "examples" / "torch_distributed.py"


def run(ranks, *command):
    """Runs ranks as torchrun starts them. Returns what they print."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = os.environ | {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen([sys.executable, *map(str, command)], env=common | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(ranks)
    ]
    try:
        printed = [process.communicate(timeout=300)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * ranks
    return "".join(printed)


# Together, as each process loads torch.
@pytest.mark.parametrize("what", [["as_gloo", "dtypes", "asynchronous", "wrappers", "groups"], ["leaves"]])
def test_ranks(what):
    run(3, HERE / "torch_ranks.py", *what)


@pytest.mark.parametrize("ranks, start", [(2, ["-m", "gdsync.distributed"]), (4, [])])
def test_an_unchanged_program_has_the_results_of_gloo(ranks, start):
    found = {backend: run(ranks, *start, EXAMPLE, "--backend", backend) for backend in ("gloo", "gdsync")}
    assert found["gdsync"] == found["gloo"] and f"{ranks} ranks: " in found["gloo"]


def test_an_exchange_of_more_ranks_than_a_batch_has():
    from gdsync.distributed._lanes import RANKS, SoftLane, each
    from gdsync.distributed._work import Work

    size = RANKS + 4

    def rank(team):
        lane = SoftLane(team, 60.0)
        for length in (1, 100_000):
            sent = [torch.full((length,), float(100 * team.rank + other)) for other in range(size)]
            arrived = [torch.empty(length) for _ in range(size)]
            work = Work("the exchange", arrived, 60.0, lane.blocked)
            lane.exchange(work, list(each(sent)), list(each(arrived)))
            lane.finish(work)
            work.wait()
            assert [one.unique().tolist() for one in arrived] == [[100.0 * other + team.rank] for other in range(size)]
        team.flush(60)
        team.barrier()

    gdsync.run_ranks(size, rank, queues=2)
