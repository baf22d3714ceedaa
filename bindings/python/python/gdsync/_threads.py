"""Ranks as threads of one process, for tests and experiments."""

from __future__ import annotations

import sys
import threading
import traceback
from typing import Any, Callable

from ._documentation import documented
from ._errors import ConnectionFailed, PeerDead, TimedOut
from ._gdsync import Bootstrap
from ._team import Team


@documented
def run_ranks(size: int, rank: Callable[[Team], Any], *, queues: int = 1, timeout: float = 30.0) -> list[Any]:
    results: list[Any] = [None] * size
    # In the order in which ranks raised them.
    errors: list[tuple[int, BaseException]] = []

    def run(bootstrap: Bootstrap) -> None:
        try:
            results[bootstrap.rank] = rank(Team(bootstrap, queues=queues))
        except BaseException as error:
            # The frames hold the team, and other ranks wait for a rank as long as its team exists.
            traceback.clear_frames(error.__traceback__)
            errors.append((bootstrap.rank, error))

    # Daemons: a rank that hangs does not keep an interrupted program from ending.
    threads = [
        threading.Thread(target=run, args=(bootstrap,), daemon=True) for bootstrap in Bootstrap.threads(size, timeout)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        # The others of a rank that has raised find it dead, or miss it.
        own = [found for found in errors if not isinstance(found[1], (PeerDead, ConnectionFailed, TimedOut))]
        rank_of_first, first = (own or errors)[0]
        if sys.version_info >= (3, 11):
            first.add_note(f"raised by rank {rank_of_first} of {size}")
        raise first
    return results
