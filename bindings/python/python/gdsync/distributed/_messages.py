"""Messages between two ranks, from and to tensors of the CPU: they pass each other and collectives, and match by tags.

A thread of its own moves them: an event loop, whose tasks are the messages. Each message has a header before it. A message for which
no receive is posted stays in its sender's slots, or moves aside if a receive of another tag waits behind it.
"""

from __future__ import annotations

import asyncio
import ctypes
import struct
import threading
from typing import Any, Optional

from .._errors import InvalidArgument
from .._messages import Memory, Messages, Part, Transfer
from ._work import Work

# Tag and length.
HEADER = struct.Struct("<qQ")
# The longest part of a message that travels at a time.
CHUNK = 64 << 10


class _Receive:
    """A posted receive. Without a rank, it takes the first message of the tag."""

    def __init__(self, rank: Optional[int], tag: int, part: Part, work: Work) -> None:
        self.rank, self.tag, self.part, self.work = rank, tag, part, work

    def takes(self, rank: int, tag: int) -> bool:
        return self.tag == tag and self.rank in (None, rank)

    def end(self, rank: int, error: Optional[BaseException] = None) -> None:
        self.work.source, self.work.error = rank, error
        self.work.finish()


class PointToPoint:
    """The messages of a group. All ranks make it together."""

    def __init__(self, team: Any) -> None:
        self._rank, self._size = team.rank, team.size
        self._messages = Messages(team, CHUNK)
        self._sending = [asyncio.Lock() for _ in range(self._size)]
        # In the order of the calls.
        self._posted: list[_Receive] = []
        # By rank: messages that have moved aside, why none arrives, and whether receives have come or gone.
        self._aside: list[list[tuple[int, bytearray]]] = [[] for _ in range(self._size)]
        self._dead: dict[int, BaseException] = {}
        self._news: list[asyncio.Event] = []
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._lock = threading.Lock()

    def send(self, work: Work, rank: int, tag: int, part: Part) -> None:
        """Sends bytes to a rank."""
        self._call(lambda: self._start(self._send(work, rank, tag, part)))

    def receive(self, work: Work, rank: Optional[int], tag: int, part: Part) -> None:
        """Receives bytes from a rank, or from any."""
        self._call(lambda: self._post(_Receive(rank, tag, part, work)))

    def stop(self) -> None:
        """Ends the thread. What is under way does not finish."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop = None

    def _call(self, call: Any) -> None:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._run, args=(self._loop,), name="gdsync-messages", daemon=True)
                self._thread.start()
                self._loop.call_soon_threadsafe(self._begin)
            self._loop.call_soon_threadsafe(call)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.run_forever()
        for task in self._tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*self._tasks, return_exceptions=True))
        loop.close()

    def _begin(self) -> None:
        self._news = [asyncio.Event() for _ in range(self._size)]
        for rank in range(self._size):
            self._start(self._read(rank))

    def _start(self, coroutine: Any) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _drive(self, transfer: Transfer) -> None:
        for awaited in transfer:
            await self._messages.notified(awaited)

    async def _send(self, work: Work, rank: int, tag: int, part: Part) -> None:
        try:
            # Messages to a rank leave in the order of the calls.
            async with self._sending[rank]:
                header = bytearray(HEADER.pack(tag, part[1]))
                await self._drive(self._messages.send(rank, Memory(header).part()))
                await self._drive(self._messages.send(rank, part))
        except Exception as error:
            work.error = error
        work.finish()

    def _post(self, receive: _Receive) -> None:
        if self._take_aside(receive):
            return
        if receive.rank in self._dead:
            receive.end(receive.rank, self._dead[receive.rank])
            return
        self._posted.append(receive)
        for news in self._news:
            news.set()

    def _take_aside(self, receive: _Receive) -> bool:
        """Ends a receive by the first message of its tag that has moved aside."""
        for rank in range(self._size) if receive.rank is None else (receive.rank,):
            for at, (tag, data) in enumerate(self._aside[rank]):
                if receive.takes(rank, tag):
                    del self._aside[rank][at]
                    error = _wrong_length(rank, len(data), receive.part[1])
                    if error is None:
                        ctypes.memmove(receive.part[0], bytes(data), len(data))
                    receive.end(rank, error)
                    return True
        return False

    async def _read(self, rank: int) -> None:
        """Receives the messages of a rank."""
        receive: Optional[_Receive] = None
        try:
            while True:
                await self._until(rank)
                header = bytearray(HEADER.size)
                await self._drive(self._messages.receive(rank, Memory(header).part()))
                tag, length = HEADER.unpack(header)
                # The receive for which the header was read may be gone.
                await self._until(rank)
                receive = next((one for one in self._posted if one.takes(rank, tag)), None)
                if receive is not None:
                    self._posted.remove(receive)
                if receive is not None and receive.part[1] == length:
                    await self._drive(self._messages.receive(rank, receive.part))
                    receive.end(rank)
                else:
                    data = bytearray(length)
                    await self._drive(self._messages.receive(rank, Memory(data).part()))
                    if receive is None:
                        self._aside[rank].append((tag, data))
                        # Receives were posted meanwhile.
                        self._posted = [one for one in self._posted if not self._take_aside(one)]
                    else:
                        receive.end(rank, _wrong_length(rank, length, receive.part[1]))
                receive = None
        except Exception as error:
            self._dead[rank] = error
            failed = [one for one in self._posted if one.rank == rank]
            self._posted = [one for one in self._posted if one not in failed]
            for one in failed + ([] if receive is None else [receive]):
                one.end(rank, error)

    async def _until(self, rank: int) -> None:
        """Waits for a posted receive that may take a message of a rank."""
        while not any(one.rank in (None, rank) for one in self._posted):
            self._news[rank].clear()
            await self._news[rank].wait()


def _wrong_length(rank: int, sent: int, received: int) -> Optional[InvalidArgument]:
    if sent == received:
        return None
    return InvalidArgument(f"rank {rank} has sent {sent} bytes, and {received} are received: give both ranks the same length")
