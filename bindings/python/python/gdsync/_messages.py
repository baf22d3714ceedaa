"""Messages among the ranks of a team: arrays pass through slots of a segment, by notified writes.

Each rank has slots for what arrives from each other one, and as many for what it sends there. A message is divided into chunks,
which take turns in a pair's slots. The value of a chunk's notification has its length; the receiver's answer frees the slot, and
means that the sender's copy has been read.
"""

from __future__ import annotations

import ctypes
import threading
import time
from typing import Any, Awaitable, Generator, Optional, Sequence

from ._errors import InvalidArgument, PeerDead, TimedOut, Unsupported
from ._tensors import describe

# Slots of a pair of ranks in one direction: one is filled while the other is emptied.
SLOTS = 2
# What a notification's value can tell.
LONGEST = 1 << 30
# Bytes of an array: their address, their number, and what keeps them.
Part = tuple[int, int, object]
# A transfer yields the notification that it waits for.
Transfer = Generator[int, None, None]


class Memory:
    """The bytes of an array in the host's memory, and the size of its items."""

    def __init__(self, array: Any, is_read: bool = False) -> None:
        self.itemsize: int = getattr(array, "itemsize", 1)
        self.address, self.nbytes = 0, 0
        self._owner: object = None
        if is_read and isinstance(array, bytes):
            array = bytearray(array)
        if getattr(array, "nbytes", None) == 0 or (isinstance(array, bytearray) and not array):
            return
        self.address, self.nbytes, gpu, self._owner = describe(array)
        if gpu is not None:
            raise Unsupported(
                "messages and all_reduce take arrays of the host, and this one is on a GPU: register it, and write it by "
                "a batch of the stream, or use plan(gpu=...)"
            )

    def copy_to(self, address: int) -> None:
        """Copies the bytes out."""
        ctypes.memmove(address, self.address, self.nbytes)

    def copy_from(self, address: int) -> None:
        """Copies as many bytes in."""
        ctypes.memmove(self.address, address, self.nbytes)

    def part(self, first: int = 0, count: Optional[int] = None) -> Part:
        """Returns items of the array."""
        count = self.nbytes // self.itemsize - first if count is None else count
        return self.address + first * self.itemsize, count * self.itemsize, self._owner

    def parts(self, counts: Optional[Sequence[int]], ranks: int, what: str) -> list[Part]:
        """Divides the array by counts of items, or evenly."""
        items = self.nbytes // self.itemsize
        if counts is None:
            if items % ranks:
                raise InvalidArgument(f"{what} of {items} items does not divide among {ranks} ranks: give counts")
            counts = [items // ranks] * ranks
        if len(counts) != ranks or min(counts) < 0 or sum(counts) > items:
            raise InvalidArgument(
                f"the counts {list(counts)} do not divide {what} of {items} items among {ranks} ranks: give each rank's "
                "number of items, in the order of ranks"
            )
        firsts = [sum(counts[:place]) for place in range(ranks)]
        return [self.part(first, count) for first, count in zip(firsts, counts)]


class Messages:
    """The messages of a rank. All ranks make it together."""

    def __init__(self, team: Any, nbytes: int) -> None:
        if not 0 < nbytes < LONGEST:
            raise InvalidArgument(f"messages={nbytes}: give 1 to {LONGEST - 1} bytes for a part of a message, or 0 for none")
        # Slots begin at cache lines.
        self._slot = -(-nbytes // 64) * 64
        self._rank, self._size = team.rank, team.size
        slots = self._size * SLOTS
        self._segment = team.allocate(2 * slots * self._slot, notifications=2 * slots)
        self._queue = team.queue()
        self._base: int = self._segment.__array_interface__["data"][0]
        for rank in range(self._size):
            for of in (0, slots):
                self._segment.expect_from(range(of + rank * SLOTS, of + (rank + 1) * SLOTS), rank)
        # For each rank, the chunks so far, and who sends or receives now.
        self._sent, self._received = [0] * self._size, [0] * self._size
        self._sending = [threading.Lock() for _ in range(self._size)]
        self._receiving = [threading.Lock() for _ in range(self._size)]

    def send(self, rank: int, part: Part) -> Transfer:
        """Sends bytes to a rank."""
        self._check(rank)
        with self._sending[rank]:
            for address, length, is_last in _chunks(part, self._slot):
                slot, own = self._sent[rank] % SLOTS, self._size * SLOTS + rank * SLOTS
                if self._sent[rank] >= SLOTS:
                    yield from self._notified(own + slot)
                    self._segment.reset(own + slot)
                self._sent[rank] += 1
                place = (own + slot) * self._slot
                ctypes.memmove(self._base + place, address, length)
                there = self._rank * SLOTS + slot
                told = 2 * length + is_last + 1
                if length:
                    source = self._segment[place : place + length]
                    self._queue.write_notify(source, rank, there * self._slot, there, told)
                else:
                    self._queue.notify(self._segment, rank, there, told)

    def receive(self, rank: int, part: Part) -> Transfer:
        """Receives bytes from a rank. Raises ``InvalidArgument`` after a message of another length."""
        self._check(rank)
        (address, room, _), length = part, 0
        with self._receiving[rank]:
            is_last = False
            while not is_last:
                here = rank * SLOTS + self._received[rank] % SLOTS
                yield from self._notified(here)
                told = self._segment.reset(here) - 1
                self._received[rank] += 1
                chunk, is_last = told >> 1, bool(told & 1)
                if length + chunk <= room:
                    ctypes.memmove(address + length, self._base + here * self._slot, chunk)
                length += chunk
                answer = (self._size + self._rank) * SLOTS + here % SLOTS
                try:
                    self._queue.notify(self._segment, rank, answer)
                except PeerDead:
                    # What it has sent is here: a rank that has left expects no answer.
                    pass
        if length != room:
            raise InvalidArgument(f"rank {rank} has sent {length} bytes, and {room} are received: give both ranks the same length")

    def run(self, transfers: Sequence[Transfer], what: str, timeout: Optional[float]) -> None:
        """Runs transfers together, so that no two ranks wait for each other's receives. Raises ``TimedOut``."""
        end = None if timeout is None else time.monotonic() + timeout
        waiting = [(transfer, -1) for transfer in transfers]
        while True:
            still = []
            for transfer, awaited in waiting:
                if awaited < 0 or self._is_set(awaited):
                    awaited = next(transfer, -1)
                    if awaited < 0:
                        continue
                still.append((transfer, awaited))
            waiting = still
            if not waiting:
                return
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                raise TimedOut(f"{what} took longer than {timeout} s: give a longer timeout, or None to wait without a limit")
            ids = [awaited for _, awaited in waiting]
            try:
                # Another notification of the range may be set: then it looks again.
                self._segment.wait(range(min(ids), max(ids) + 1), left)
            except TimedOut:
                pass

    def notified(self, awaited: int) -> Awaitable[int]:
        """Waits as a coroutine for what a transfer waits for."""
        found: Awaitable[int] = self._segment.wait_async(awaited)
        return found

    def _check(self, rank: int) -> None:
        if not 0 <= rank < self._size:
            raise InvalidArgument(f"rank {rank} is none of the {self._size} ranks of the team: give one from 0 to {self._size - 1}")

    def _is_set(self, id: int) -> bool:
        try:
            self._segment.wait(id, 0)
        except TimedOut:
            return False
        return True

    def _notified(self, id: int) -> Transfer:
        while not self._is_set(id):
            yield id


def _chunks(part: Part, most: int) -> Generator[tuple[int, int, bool], None, None]:
    """Divides a part; one of no bytes is one chunk, which tells that it has none."""
    address, nbytes, _ = part
    for first in range(0, max(nbytes, 1), most):
        length = min(most, nbytes - first)
        yield address + first, length, first + length == nbytes


