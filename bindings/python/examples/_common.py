"""Shared by the examples: ranks as processes, and arrays on the CPU or on a GPU.

``python pipeline.py`` starts its ranks itself, as ``gdsync run -n 4 -- python pipeline.py`` and
``torchrun --nproc-per-node 4 pipeline.py`` do.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any, Callable, NoReturn

import gdsync


def main(run: Callable[[Machine, gdsync.Team, argparse.Namespace], None], ranks: int, **options: int) -> None:
    """Runs ``run(machine, team, arguments)`` on every rank. ``options`` are numeric command-line options."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--on", choices=["numpy", "torch", "cupy"], default="numpy", help="what holds the arrays")
    parser.add_argument("--ranks", type=int, default=ranks)
    for name, value in options.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    arguments = parser.parse_args()
    if not os.environ.keys() & {"RANK", "GDSYNC_RANK"}:
        start(arguments.ranks)
    machine = Machine(arguments.on)
    team = gdsync.Team.from_env(machine.pd, queues=2)
    run(machine, team, arguments)


def leave(team: gdsync.Team) -> None:
    """No rank drops its segments while others still write to them."""
    team.flush(60)
    team.barrier()


def start(ranks: int) -> NoReturn:
    """Becomes ``gdsync run``, which starts this program once for each rank and ends all of them when one fails."""
    # For GPUs without a card: the software card copies while streams wait, so kernels are loaded ahead, and streams
    # share no channel.
    os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    command = gdsync.command()
    os.execv(command, [command, "run", "-n", str(ranks), "--", sys.executable, *sys.argv])


class Machine:
    """Arrays, and a stream on which they are computed."""

    def __init__(self, on: str) -> None:
        self.on = on
        # The module of the arrays: NumPy, torch or CuPy.
        self.arrays: Any
        self.own: Any
        self.enter: Callable[[], Any]
        self.pd = gdsync.ProtectionDomain()
        if on == "numpy":
            import numpy

            self.arrays, self.stream = numpy, gdsync.Stream()
            return
        local = int(os.environ.get("LOCAL_RANK") or os.environ.get("GDSYNC_RANK", "0"))
        if on == "torch":
            import torch

            torch.cuda.set_device(local % torch.cuda.device_count())
            self.arrays, self.own = torch, torch.cuda.Stream()
            self.enter = lambda: torch.cuda.stream(self.own)
        else:
            import cupy

            cupy.cuda.Device(local % cupy.cuda.runtime.getDeviceCount()).use()
            self.arrays, self.own = cupy, cupy.cuda.Stream(non_blocking=True)
            self.enter = lambda: self.own
        self.stream = gdsync.Stream(self.own)

    def zeros(self, *shape: int) -> Any:
        """Single-precision zeroes in the streams' memory."""
        if self.on == "torch":
            zeros = self.arrays.zeros(shape, dtype=self.arrays.float32, device="cuda")
        else:
            zeros = self.arrays.zeros(shape, dtype="float32")
        self.settle()
        return zeros

    def settle(self) -> None:
        """Waits for the GPU before its streams wait for other ranks."""
        if self.on == "torch":
            self.arrays.cuda.synchronize()
        elif self.on == "cupy":
            self.arrays.cuda.Device().synchronize()

    def run(self, kernel: Callable[[], None]) -> None:
        """Runs a function of arrays in the order of the stream."""
        if self.on == "numpy":
            self.stream.launch(kernel)
        else:
            with self.enter():
                kernel()

    def warm(self, *kernels: Callable[[], None]) -> None:
        """Runs functions once ahead: the driver loads a kernel at its first launch and then waits for blocked streams."""
        if self.on != "numpy":
            for kernel in kernels:
                self.run(kernel)
            self.stream.synchronize(120)

    def numpy(self, array: Any) -> Any:
        """A copy for the CPU."""
        if self.on == "torch":
            return array.cpu().numpy()
        return array.get() if self.on == "cupy" else array.copy()
