"""The output of the command ``gdsync``, as data."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any, Optional, Sequence

from ._documentation import documented
from ._errors import Error, InvalidArgument


@documented
def command() -> str:
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "_command", "gdsync")


@documented
def doctor() -> dict[str, Any]:
    # 1: something needs repair.
    return _json(["doctor", "--json"], None, Error, good=(0, 1))


@documented
def explain(batch: str, *, collect_from: Optional[int] = None) -> dict[str, Any]:
    collect = [] if collect_from is None else ["--collect-from", str(collect_from)]
    return _json(["explain", "--json", *collect], batch, InvalidArgument, good=(0,))


def _json(arguments: Sequence[str], text: Optional[str], error: type[Error], good: tuple[int, ...]) -> dict[str, Any]:
    done = subprocess.run(
        [command(), *arguments], input=text or "", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    if done.returncode not in good:
        raise error(done.stderr.strip() or f"the command ended with {done.returncode}")
    return json.loads(done.stdout)["rows"][0]
