"""Ranks as threads of one process, for tests and experiments."""

from __future__ import annotations

import threading
import traceback
from typing import Any, Callable, Optional

from ._documentation import documented
from ._gdsync import Bootstrap, Team


@documented
def run_ranks(size: int, rank: Callable[[Team], Any], *, queues: int = 1, timeout: float = 30.0) -> list[Any]:
    results: list[Any] = [None] * size
    errors: list[Optional[BaseException]] = [None] * size

    def run(bootstrap: Bootstrap) -> None:
        try:
            results[bootstrap.rank] = rank(Team(bootstrap, queues=queues))
        except BaseException as error:
            # The frames hold the team, and other ranks wait for a rank as long as its team exists.
            traceback.clear_frames(error.__traceback__)
            errors[bootstrap.rank] = error

    # Daemons: a rank that hangs does not keep an interrupted program from ending.
    threads = [
        threading.Thread(target=run, args=(bootstrap,), daemon=True) for bootstrap in Bootstrap.threads(size, timeout)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        if error is not None:
            raise error
    return results
