"""Teams with messages and collectives of arrays, which are made of the segments and plans of the module's teams."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Optional, Sequence

from . import _gdsync
from ._documentation import documented
from ._errors import InvalidArgument
from ._gdsync import Bootstrap, Plan, ProtectionDomain, Stream
from ._messages import Memory, Messages, Part

# Names of types of numbers: of NumPy and torch, and formats of buffers.
_ELEMENTS = {
    "float32": "f32", "f": "f32", "float64": "f64", "d": "f64", "int8": "i8", "b": "i8", "uint8": "u8", "B": "u8", "int16": "i16",
    "h": "i16", "uint16": "u16", "H": "u16", "int32": "i32", "i": "i32", "uint32": "u32", "I": "u32", "int64": "i64", "q": "i64",
    "l": "i64", "uint64": "u64", "Q": "u64", "L": "u64",
}  # fmt: skip


@documented
class Team(_gdsync.Team):
    _messages: Optional[Messages]
    # By length, type, operation and members.
    _plans: dict[tuple[int, str, str, tuple[int, ...]], Plan]
    _stream: Optional[Stream]

    def __new__(
        cls,
        bootstrap: Bootstrap,
        pd: Optional[ProtectionDomain] = None,
        *,
        queues: int = 1,
        connections: str = "auto",
        messages: int = 32768,
    ) -> Team:
        team = super().__new__(cls, bootstrap, pd, queues=queues, connections=connections)
        team._plans, team._stream = {}, None
        team._messages = Messages(team, messages) if messages else None
        return team

    @classmethod
    def from_env(
        cls,
        pd: Optional[ProtectionDomain] = None,
        *,
        queues: int = 1,
        connections: str = "auto",
        messages: int = 32768,
        timeout: Optional[float] = 30.0,
    ) -> Team:
        return cls(Bootstrap.from_env(timeout), pd, queues=queues, connections=connections, messages=messages)

    def __enter__(self) -> Team:
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        # A rank that raises leaves at once: the others find it dead, and do not wait for it.
        if kind is None:
            self.flush()
            self.barrier()

    def send(self, array: Any, rank: int, timeout: Optional[float] = None) -> None:
        messages = self._opened()
        messages.run([messages.send(rank, Memory(array, is_read=True).part())], f"the message to rank {rank}", timeout)

    def recv(self, array: Any, rank: int, timeout: Optional[float] = None) -> None:
        messages = self._opened()
        messages.run([messages.receive(rank, Memory(array).part())], f"the message from rank {rank}", timeout)

    def broadcast(self, array: Any, root: int = 0, timeout: Optional[float] = None) -> None:
        messages, members = self._opened(), self._members(root)
        part = Memory(array, is_read=self.rank == root).part()
        # From the root to each rank, so that its death ends the waits of all.
        transfers = [messages.send(rank, part) for rank in members if rank != root]
        messages.run(transfers if self.rank == root else [messages.receive(root, part)], "the broadcast", timeout)

    def gather(
        self,
        array: Any,
        into: Any = None,
        root: int = 0,
        *,
        counts: Optional[Sequence[int]] = None,
        timeout: Optional[float] = None,
    ) -> None:
        messages, members = self._opened(), self._members(root)
        transfers = [messages.send(root, Memory(array, is_read=True).part())]
        if self.rank == root:
            parts = Memory(into).parts(counts, len(members), "`into`")
            transfers += [messages.receive(rank, part) for rank, part in zip(members, parts)]
        messages.run(transfers, "the gather", timeout)

    def scatter(
        self,
        array: Any,
        into: Any,
        root: int = 0,
        *,
        counts: Optional[Sequence[int]] = None,
        timeout: Optional[float] = None,
    ) -> None:
        messages, members = self._opened(), self._members(root)
        transfers = [messages.receive(root, Memory(into).part())]
        if self.rank == root:
            parts = Memory(array, is_read=True).parts(counts, len(members), "`array`")
            transfers += [messages.send(rank, part) for rank, part in zip(members, parts)]
        messages.run(transfers, "the scatter", timeout)

    def all_to_all(
        self,
        array: Any,
        into: Any,
        *,
        send_counts: Optional[Sequence[int]] = None,
        recv_counts: Optional[Sequence[int]] = None,
        timeout: Optional[float] = None,
    ) -> None:
        messages, members = self._opened(), self.members
        sent: list[Part] = Memory(array, is_read=True).parts(send_counts, len(members), "`array`")
        received: list[Part] = Memory(into).parts(recv_counts, len(members), "`into`")
        transfers = [messages.send(rank, part) for rank, part in zip(members, sent)]
        transfers += [messages.receive(rank, part) for rank, part in zip(members, received)]
        messages.run(transfers, "the all-to-all", timeout)

    def all_reduce(self, array: Any, operation: str = "sum", timeout: Optional[float] = None) -> None:
        memory, element = Memory(array), _element_of(array)
        if not memory.nbytes:
            return
        members = tuple(self.members)
        key = (memory.nbytes, element, operation, members)
        if key not in self._plans:
            self._plans[key] = _gdsync.plan(self, "all_reduce", memory.nbytes, element=element, operation=operation)
        plan, stream = self._plans[key], self._own_stream()
        base: int = plan.segment.__array_interface__["data"][0]
        start, _ = plan.input()
        memory.copy_to(base + start)
        plan.post(stream)
        try:
            stream.synchronize(timeout)
        finally:
            plan.check()
        memory.copy_from(base + start)

    def _own_stream(self) -> Stream:
        if self._stream is None:
            # The check of the plan raises PeerDead, and the stream serves the rest of the team.
            self._stream = Stream(stop_at_death=False)
        return self._stream

    def _opened(self) -> Messages:
        if self._messages is None:
            raise InvalidArgument("the team has no memory for messages: make it with Team(messages=...), on all ranks")
        return self._messages

    def _members(self, root: int) -> list[int]:
        members = self.members
        if root not in members:
            raise InvalidArgument(f"rank {root}, the root, is none of the team's members {members}: give one of them")
        return members


def _element_of(array: Any) -> str:
    """Returns the type of an array's numbers."""
    kind = getattr(array, "dtype", None)
    name = str(memoryview(array).format if kind is None else kind).removeprefix("torch.")
    if name not in _ELEMENTS:
        known = "float32, float64, and integers of 8 to 64 bits"
        raise InvalidArgument(f"all_reduce has no numbers of type {name}: it knows {known}")
    return _ELEMENTS[name]
