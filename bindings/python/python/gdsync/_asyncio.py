"""Waits as coroutines: an event loop watches one descriptor for all of them."""

from __future__ import annotations

import asyncio
import weakref
from typing import Any, Optional

from . import _gdsync

# An outcome, or an exception.
Ended = tuple[Any, Optional[BaseException]]


class _Waits:
    """The waits of an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.native = _gdsync._Waits()
        self.futures: dict[int, asyncio.Future[Any]] = {}
        # What has ended while its task was being canceled.
        self.kept: dict[int, Ended] = {}
        loop.add_reader(self.native.fileno(), self._deliver)

    def _deliver(self) -> None:
        for token, outcome, error in self.native.ended():
            future = self.futures[token]
            if future.cancelled():
                self.kept[token] = outcome, error
            elif error is None:
                future.set_result(outcome)
            else:
                future.set_exception(error)

    def cancel(self, token: int) -> Optional[Ended]:
        """Gives a wait up. Returns how it has ended if it has."""
        if token in self.kept:
            return self.kept.pop(token)
        found = self.native.cancel(token)
        return None if found is None else found[1:]


_LOOPS: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Waits] = weakref.WeakKeyDictionary()


async def awaitable(wait: Any) -> Any:
    """Waits for a wait of the module. A canceled wait that has ended returns its outcome, so that none is lost."""
    loop = asyncio.get_running_loop()
    if loop not in _LOOPS:
        _LOOPS[loop] = _Waits(loop)
    waits = _LOOPS[loop]
    token = waits.native.add(wait)
    future = waits.futures[token] = loop.create_future()
    try:
        return await future
    except asyncio.CancelledError:
        if not future.cancelled():
            return future.result()
        ended = waits.cancel(token)
        if ended is None:
            raise
        outcome, error = ended
        if error is not None:
            raise error from None
        return outcome
    finally:
        del waits.futures[token]
