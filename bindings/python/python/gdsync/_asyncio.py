"""Waits as coroutines: short waits on the threads of the event loop."""

from __future__ import annotations

import asyncio
from typing import Any, Callable, Optional

from ._errors import TimedOut

# Seconds that a wait occupies its thread, even if it is canceled.
_SLICE = 0.05


async def awaitable(call: Callable[..., Any], args: tuple[Any, ...], timeout: Optional[float]) -> Any:
    """Repeats ``call(*args, seconds)`` until it does not raise ``TimedOut``, or until the time has passed."""
    loop = asyncio.get_running_loop()
    deadline = None if timeout is None else loop.time() + timeout
    while True:
        left = _SLICE if deadline is None else min(_SLICE, max(0.0, deadline - loop.time()))
        short = loop.run_in_executor(None, call, *args, left)
        try:
            return await asyncio.shield(short)
        except TimedOut:
            if deadline is not None and loop.time() >= deadline:
                raise TimedOut(
                    f"{call.__self__!r}: the wait took longer than {timeout} s: "  # type: ignore[attr-defined]
                    "give a longer timeout, or None to wait without a limit"
                ) from None
        except asyncio.CancelledError:
            # Do not lose what the thread takes at this moment, such as a completion.
            try:
                return await short
            except TimedOut:
                pass
            raise
