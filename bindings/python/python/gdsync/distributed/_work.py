"""What an operation returns: torch waits for it, and futures have its result."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any, Callable, Optional, Sequence

import torch
from torch._C import _distributed_c10d

from .._errors import TimedOut

# A long wait looks so often whether its stream has failed, in seconds.
LOOK = 1.0

# Its types differ among versions of torch.
_Work: Any = getattr(_distributed_c10d, "Work")


class Work(_Work):
    """An operation of a group. ``result`` is what its future has; ``blocked`` tells what it waits for, or raises."""

    def __init__(self, what: str, result: Any, timeout: float, blocked: Callable[[], Optional[str]]) -> None:
        super().__init__()
        self.error: Optional[BaseException] = None
        # The rank that an operation from any rank has received from.
        self.source = -1
        # Operations of a GPU: what has them behind it.
        self.event: Optional[torch.cuda.Event] = None
        # Put right what was received, once it is there.
        self.last: list[Callable[[], object]] = []
        self._what, self._result, self._timeout, self._blocked = what, result, timeout, blocked
        self._done = threading.Event()
        self._future: Any = None
        self._lock = threading.Lock()

    def attempt(self, step: Callable[[], object]) -> None:
        """Performs a step unless one has failed."""
        if self.error is None:
            try:
                with torch.no_grad():
                    step()
            except Exception as error:
                self.error = error

    def finish(self) -> None:
        """Tells that all steps are done, or one has failed."""
        for step in self.last:
            self.attempt(step)
        with self._lock:
            self._done.set()
            future = self._future
        if future is not None:
            self._tell(future)

    def _tell(self, future: Any) -> None:
        if self.error is None:
            future.set_result(self._result)
        else:
            future.set_exception(self.error)

    def wait(self, timeout: Optional[timedelta] = None) -> bool:
        limit = (timeout.total_seconds() if timeout else 0.0) or self._timeout
        end = time.monotonic() + limit
        while not self._done.wait(max(0.0, min(LOOK, end - time.monotonic()))):
            blocked = self._blocked()
            if time.monotonic() >= end:
                raise TimedOut(
                    f"{self._what} took longer than {limit:g} s" + (f": {blocked}" if blocked else "")
                    + "; give a longer timeout to init_process_group, or find the rank that does not take part"
                )  # fmt: skip
        if self.error is not None:
            raise self.error
        if self.event is not None:
            torch.cuda.current_stream().wait_event(self.event)
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self._done.is_set() and (self.event is None or bool(self.event.query()))

    def is_success(self) -> bool:
        return self.is_completed() and self.error is None

    def exception(self) -> Any:
        return self.error

    def result(self) -> Any:
        return self._result

    def source_rank(self) -> int:
        return self.source

    def _source_rank(self) -> int:
        return self.source

    def get_future(self) -> Any:
        with self._lock:
            if self._future is not None:
                return self._future
            devices: Any = None if self.event is None else [torch.device("cuda", torch.cuda.current_device())]
            self._future = torch.futures.Future(devices=devices)
            if not self._done.is_set():
                return self._future
        self._tell(self._future)
        return self._future


class Several(_Work):
    """Operations that a program waits for together."""

    def __init__(self, works: Sequence[Any], result: Any) -> None:
        super().__init__()
        self._works, self._result = list(works), result

    def wait(self, timeout: Optional[timedelta] = None) -> bool:
        return all([work.wait(timeout or timedelta(0)) for work in self._works])

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        return all(work.is_success() for work in self._works)

    def exception(self) -> Any:
        return next((work.exception() for work in self._works if work.is_completed() and not work.is_success()), None)

    def result(self) -> Any:
        return self._result

    def get_future(self) -> Any:
        futures = [work.get_future() for work in self._works]
        return torch.futures.collect_all(futures).then(lambda all: [one.value() for one in all.value()] and self._result)
