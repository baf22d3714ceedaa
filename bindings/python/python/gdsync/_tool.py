"""The output of the command ``gdsync``, as data."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any, Optional, Sequence

from ._errors import Error, InvalidArgument


def command() -> str:
    """Returns the path of this package's command ``gdsync``."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "_command", "gdsync")


def doctor() -> dict[str, Any]:
    """Returns what works for GPUDirect on this machine, what does not, and remedies.

    The keys are those of the row that ``gdsync doctor --json`` prints.
    """
    # 1: something needs repair.
    return _json(["doctor", "--json"], None, Error, good=(0, 1))


def explain(batch: str, *, collect_from: Optional[int] = None) -> dict[str, Any]:
    """What a stream will do for a batch: memory operations, plain and merged, and the GPU time they take.

    ``batch`` is the text that ``gdsync explain`` reads, one operation to a line: ``"send a\nwait a"``. Runs of waits for
    at least ``collect_from`` completion queues are the card's. The keys are those of the row that
    ``gdsync explain --json`` prints.
    """
    collect = [] if collect_from is None else ["--collect-from", str(collect_from)]
    return _json(["explain", "--json", *collect], batch, InvalidArgument, good=(0,))


def _json(arguments: Sequence[str], text: Optional[str], error: type[Error], good: tuple[int, ...]) -> dict[str, Any]:
    done = subprocess.run(
        [command(), *arguments], input=text or "", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    if done.returncode not in good:
        raise error(done.stderr.strip() or f"the command ended with {done.returncode}")
    return json.loads(done.stdout)["rows"][0]
