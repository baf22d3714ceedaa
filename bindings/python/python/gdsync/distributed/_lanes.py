"""Exchanges among the ranks of a team in the order of a stream.

Each rank has slots for what arrives from each other one, and as many for what it sends there. A tensor is divided into chunks, which
take turns in a pair's slots. A chunk's notification lets the receiver's stream copy it out; the receiver's answer lets the sender's
stream fill the slot again. The CPU waits for nothing: it posts an exchange while earlier ones are under way.
"""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any, Callable, Iterator, Sequence

import torch
from torch import Tensor

import gdsync

from .._errors import Error, InvalidArgument, PeerDead
from ._work import Work

# Bytes to or from a rank.
Transfer = tuple[int, Tensor]

# Slots of a pair of ranks in one direction: a faster rank is one chunk ahead.
SLOTS = 2
# A slot begins with the chunk's number and length, which tell what arrives from a release of the wait and from another operation.
HEADER = 64
LENGTH = 1 << 32
# The memory of all of a rank's slots, and the bytes of one.
MEMORY, LEAST, MOST = 16 << 20, 16 << 10, 256 << 10
# Ranks in a batch, whose sends are in queues of a limited length.
RANKS = 16


def flat(tensor: Tensor) -> Tensor:
    """The bytes of a contiguous tensor."""
    return tensor.detach().reshape(-1).view(torch.uint8)


class Lane:
    """A stream of a group, and the slots of its exchanges. All ranks make it together."""

    # The queue of the team that only this stream posts to.
    queue: int

    def __init__(self, team: gdsync.Team, stream: gdsync.Stream, memory: gdsync.Segment, slot: int, timeout: float) -> None:
        self.stream = stream
        self._rank, self._size, self._timeout = team.rank, team.size, timeout
        self._segment, self.room = memory, slot - HEADER
        count = 2 * self._size * SLOTS
        for rank in range(self._size):
            for of in (0, count // 2):
                memory.expect_from(range(of + rank * SLOTS, of + (rank + 1) * SLOTS), rank)
        slots = self._view(memory).view(count, slot)
        self._heads, self._data, self._slot = slots[:, :8].view(torch.int64)[:, 0], slots[:, HEADER:], slot
        # For each rank, the chunks so far.
        self._sent, self._received = [0] * self._size, [0] * self._size

    @staticmethod
    def slot_of(size: int) -> int:
        """The bytes of a slot, the same on all ranks."""
        return max(LEAST, min(MOST, MEMORY // (2 * size * SLOTS))) // HEADER * HEADER

    def run(self, work: Work, step: Callable[[], object]) -> None:
        """Performs a step of an operation in the order of the stream."""
        raise NotImplementedError

    def empty(self, rows: int, like: Tensor, items: int) -> Tensor:
        """Memory for what arrives."""
        raise NotImplementedError

    def begin(self, tensors: Sequence[Tensor]) -> None:
        """Orders an operation of these tensors behind what the program has done with them."""

    def finish(self, work: Work) -> None:
        """Ends an operation when the stream has performed its steps."""
        raise NotImplementedError

    def check(self) -> None:
        """Raises if chunks of past operations have not arrived, unless those have failed by themselves."""

    def blocked(self) -> str:
        """Returns the wait that blocks the stream. Raises if the stream has failed."""
        try:
            self.stream.synchronize(0)
        except TimeoutError:
            pass
        return self.stream.oldest_wait or ""

    def exchange(self, work: Work, sends: Sequence[Transfer], receives: Sequence[Transfer]) -> None:
        """Sends bytes to ranks, and receives from ranks, at most once for each rank. Both ranks know the length."""
        own = [part for rank, part in sends if rank == self._rank], [part for rank, part in receives if rank == self._rank]
        for source, target in zip(*own):
            if source.data_ptr() != target.data_ptr():
                self.run(work, partial(target.copy_, source))
        sends = [(rank, part) for rank, part in sends if rank != self._rank]
        receives = [(rank, part) for rank, part in receives if rank != self._rank]
        longest = max((len(part) for _, part in (*sends, *receives)), default=0)
        arrived: list[tuple[int, int]] = []
        for first in range(0, longest, self.room):
            arrived = self._round(work, _chunks(sends, first, self.room), _chunks(receives, first, self.room), arrived)
        self._post([partial(self._answer, *one) for one in arrived])

    def _round(
        self, work: Work, sends: list[Transfer], receives: list[Transfer], arrived: list[tuple[int, int]]
    ) -> list[tuple[int, int]]:
        """Exchanges a chunk with each rank, after answers for the last ones. Returns those to answer."""
        waits = [partial(self._answer, *one) for one in arrived]
        out: list[tuple[int, int, Tensor, int]] = []
        for rank, part in sends:
            turn = self._sent[rank]
            self._sent[rank] += 1
            own = (self._size + rank) * SLOTS + turn % SLOTS
            out.append((rank, own, part, turn))
            if turn >= SLOTS:
                waits.append(partial(self._wait, own))
        self._post(waits)
        if out:
            self.run(work, lambda: self._fill(out))
        posts = [partial(self._write, *one) for one in out]
        into: list[tuple[int, int, Tensor, int]] = []
        for rank, part in receives:
            turn = self._received[rank]
            self._received[rank] += 1
            here = rank * SLOTS + turn % SLOTS
            into.append((rank, here, part, turn))
            posts.append(partial(self._wait, here))
        self._post(posts)
        if into:
            self.run(work, lambda: self._empty(into))
        return [(rank, here) for rank, here, _, _ in into]

    def _post(self, calls: Sequence[Callable[[gdsync.Batch], None]]) -> None:
        for first in range(0, len(calls), RANKS):
            with self.stream.batch(queue=self.queue, timeout=self._timeout) as batch:
                for call in calls[first : first + RANKS]:
                    call(batch)

    def _wait(self, id: int, batch: gdsync.Batch) -> None:
        batch.wait_notification(self._segment, id)

    def _write(self, rank: int, own: int, part: Tensor, turn: int, batch: gdsync.Batch) -> None:
        there, place = self._rank * SLOTS + turn % SLOTS, own * self._slot
        batch.write_notify(self._segment[place : place + HEADER + len(part)], rank, there * self._slot, there)

    def _answer(self, rank: int, here: int, batch: gdsync.Batch) -> None:
        try:
            batch.notify(self._segment, rank, (self._size + self._rank) * SLOTS + here % SLOTS)
        except PeerDead:
            # What it has sent is here. The next operation with the rank fails.
            pass

    def _fill(self, out: Sequence[tuple[int, int, Tensor, int]]) -> None:
        for _, own, part, turn in out:
            self._heads[own] = _head(part, turn)
            self._data[own, : len(part)].copy_(part)

    def _empty(self, into: Sequence[tuple[int, int, Tensor, int]]) -> None:
        for rank, here, part, turn in into:
            self._verify(rank, here, _head(part, turn))
            part.copy_(self._data[here, : len(part)])

    def _view(self, memory: gdsync.Segment) -> Tensor:
        raise NotImplementedError

    def _verify(self, rank: int, here: int, head: int) -> None:
        """Raises if the wait for a chunk was ended without it, or the ranks' operations differ."""
        raise NotImplementedError


def _head(part: Tensor, turn: int) -> int:
    return (turn + 1) % (LENGTH // 2) * LENGTH + len(part)


def _chunks(transfers: Sequence[Transfer], first: int, room: int) -> list[Transfer]:
    return [(rank, part[first : first + room]) for rank, part in transfers if first < len(part)]


class SoftLane(Lane):
    """Tensors of the CPU, on a software stream."""

    queue = 1

    def __init__(self, team: gdsync.Team, timeout: float) -> None:
        slot = self.slot_of(team.size)
        count = 2 * team.size * SLOTS
        super().__init__(team, gdsync.Stream(), team.allocate(count * slot, count), slot, timeout)

    def run(self, work: Work, step: Callable[[], object]) -> None:
        self.stream.launch(lambda: work.attempt(step))

    def empty(self, rows: int, like: Tensor, items: int) -> Tensor:
        return torch.empty((rows, items), dtype=like.dtype)

    def finish(self, work: Work) -> None:
        self.stream.launch(work.finish)

    def _view(self, memory: gdsync.Segment) -> Tensor:
        interface = memory.__array_interface__
        buffer = (ctypes.c_uint8 * len(memory)).from_address(interface["data"][0])
        return torch.frombuffer(buffer, dtype=torch.uint8)

    def _verify(self, rank: int, here: int, head: int) -> None:
        found = int(self._heads[here].item())
        if found != head:
            if found // LENGTH != head // LENGTH:
                self._segment.check(here)
            raise InvalidArgument(
                f"rank {rank} has sent {found % LENGTH} bytes where this rank receives {head % LENGTH}: the ranks' operations differ"
            )


class CudaLane(Lane):
    """Tensors of a GPU, on a stream of torch's that waits for the program's current one, and for which that waits."""

    queue = 2

    def __init__(self, team: gdsync.Team, gpu: int, timeout: float) -> None:
        self.device = torch.device("cuda", gpu)
        self._own: Any = torch.cuda.Stream(self.device)
        self._team, self._wrong = team, torch.zeros((), dtype=torch.int64, device=self.device)
        slot = self.slot_of(team.size)
        count = 2 * team.size * SLOTS
        super().__init__(team, gdsync.Stream(self._own), team.allocate(count * slot, count, gpu=gpu), slot, timeout)

    def run(self, work: Work, step: Callable[[], object]) -> None:
        with torch.cuda.stream(self._own):
            work.attempt(step)

    def empty(self, rows: int, like: Tensor, items: int) -> Tensor:
        with torch.cuda.stream(self._own):
            return torch.empty((rows, items), dtype=like.dtype, device=self.device)

    def begin(self, tensors: Sequence[Tensor]) -> None:
        self._own.wait_stream(torch.cuda.current_stream(self.device))
        for tensor in tensors:
            # The allocator does not give the memory to others before the stream has passed.
            tensor.record_stream(self._own)

    def finish(self, work: Work) -> None:
        for step in work.last:
            self.run(work, step)
        work.last = []
        event = work.event = torch.cuda.Event()
        with torch.cuda.stream(self._own):
            event.record(self._own)
            work.finish()
            # Made here, its result is this stream's.
            work.get_future()

    def check(self) -> None:
        wrong = int(self._wrong.item())
        if wrong:
            self._wrong.zero_()
            dead = ", ".join(f"rank {rank} is dead: {cause}" for rank, cause in self._team.dead)
            raise Error(f"{wrong} chunks have not arrived on the GPU: {dead or 'the operations of the ranks differ'}")

    def _view(self, memory: gdsync.Segment) -> Tensor:
        return torch.as_tensor(memory, device=self.device)

    def _verify(self, rank: int, here: int, head: int) -> None:
        # The GPU counts, and `check` looks.
        self._wrong.add_(self._heads[here] != head)


def each(parts: Sequence[Tensor]) -> Iterator[Transfer]:
    """A part for each rank."""
    return ((rank, flat(part)) for rank, part in enumerate(parts))
