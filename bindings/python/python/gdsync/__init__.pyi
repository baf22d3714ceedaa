"""GPUDirect Async for Python: RDMA in the order of CUDA streams.

Lengths and offsets are in bytes, times in seconds; ``timeout=None`` waits without a limit. Waiting calls release the
GIL and end with an exception when a signal handler raises one, as for Ctrl-C. Objects may be used by several threads.
"""

from types import TracebackType
from typing import Any, Awaitable, Callable, Iterable, Optional, Sequence, TypeVar, Union

T = TypeVar("T")
Ids = Union[int, range]

__version__: str

# -- Cards and memory


class Device:
    """A card."""

    def __init__(self, name: Optional[str] = None) -> None:
        """Opens the card of that name (``devices()``), or the software card.

        Raises ``Unsupported`` if there is no such card, or if the system's libraries are missing.
        """

    @property
    def name(self) -> str:
        """The name."""

    @property
    def is_software(self) -> bool:
        """True for a software card."""


def devices() -> list[str]:
    """Returns the names of this machine's cards, software first."""


class ProtectionDomain:
    """Memory and queue pairs of one card that may be used together."""

    def __init__(self, device: Optional[Device] = None) -> None:
        """Creates a domain of the card, or of the software card."""

    def register(self, tensor: Any, *, remote: bool = True) -> MemoryRegion:
        """Registers the memory of a tensor, an array or a buffer, without a copy.

        The tensor has DLPack, ``__cuda_array_interface__`` or the buffer protocol. It is kept until the card and
        streams have finished with it. ``remote`` permits other sides to read and write it. Registering memory again is
        cheap.

        Raises ``InvalidArgument`` for a tensor that is not contiguous, is read-only, or has no bytes, ``Unsupported``
        for one on a device other than a CUDA GPU, ``DeviceError`` if the card refuses.
        """

    def allocate(self, nbytes: int, *, remote: bool = True, gpu: Optional[int] = None) -> MemoryRegion:
        """Allocates zeroed memory of the host or of that GPU, and registers it."""

    @property
    def registrations(self) -> tuple[int, int, int]:
        """Registrations held, requests served by an existing one, and requests that had to register."""


class MemoryRegion:
    """Registered memory. ``region[a:b]`` is a part of it, in bytes. A slice that leaves the memory is refused.

    ``numpy.asarray(region)`` shows host memory as bytes, without a copy; ``cupy.asarray(region)`` and
    ``torch.as_tensor(region, device="cuda")`` show GPU memory.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, range: slice) -> Slice: ...

    @property
    def tensor(self) -> Any:
        """The registered object; None if the memory was allocated here."""

    @property
    def address(self) -> int:
        """The address of the first byte."""

    @property
    def remote(self) -> RemoteMemory:
        """The address, length and key for a remote side."""

    def word32(self, offset: int) -> Word:
        """Returns the 32-bit word at an offset that is a multiple of 4, for a stream to wait for or to write."""

    def word64(self, offset: int) -> Word:
        """Returns the 64-bit word at an offset that is a multiple of 8."""

    def read(self, offset: int = 0, nbytes: Optional[int] = None) -> bytes:
        """Copies bytes out by the CPU, not in the order of any stream."""

    def write(self, offset: int, data: Union[bytes, bytearray]) -> None:
        """Copies bytes in by the CPU, not in the order of any stream."""

    @property
    def __array_interface__(self) -> dict[str, Any]: ...

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...


class Slice:
    """A part of registered memory, or of a segment, for a request."""

    def __len__(self) -> int: ...


class RemoteMemory:
    """Address, length and key of another side's memory: send ``str()`` of it over any channel.

    ``remote[8:16]`` is a part.
    """

    def __init__(self, text: str) -> None:
        """Parses ``str()`` of the other side's object: address, length and key in hexadecimal, with a colon between them."""

    def __len__(self) -> int: ...

    def __getitem__(self, range: slice) -> RemoteMemory: ...


class Word:
    """A word of registered memory, for a stream to wait for or to write."""

    def load(self) -> int:
        """Returns its value."""

    def store(self, value: int) -> None:
        """Sets its value by the CPU."""


# -- Streams and batches


class Stream:
    """A stream on which batches are posted: a software one, or a CUDA stream of another library."""

    def __init__(self, stream: Any = None, *, stop_at_death: bool = True) -> None:
        """Wraps a stream of torch or CuPy, an object with ``cuda_stream``, ``ptr`` or ``__cuda_stream__``, or a raw
        handle; without one, starts a software stream.

        The object is kept as long as this one; the stream of a raw handle must exist as long.

        With ``stop_at_death`` the stream stops at a wait for a notification of a rank that is dead: it does not perform
        what follows, and ``synchronize`` raises ``PeerDead``. Without, it goes on without the data, and
        ``Segment.check`` raises ``PeerDead``.
        """

    def batch(self, *, queue: int = 0, merged: bool = True, timeout: Optional[float] = 30.0) -> Batch:
        """Returns a batch for this stream, posted at the end of a ``with`` block.

        ``queue`` is the teams' queue for its sends: each stream that sends needs its own. ``merged`` permits operations
        to share memory operations. ``timeout`` is how long its calls wait for room.
        """

    def synchronize(self, timeout: Optional[float] = None) -> None:
        """Returns when the stream has performed everything. Raises ``StreamFailed``, ``PeerDead`` if it has stopped, and ``TimedOut`` with the wait that
        blocks the stream, for how long, and why: the peer has posted no receive, is stopped or has ended, or a rank has not
        set a notification."""

    def synchronize_async(self, timeout: Optional[float] = None) -> Awaitable[None]:
        """``synchronize`` for asyncio."""

    def go_on(self) -> None:
        """Lets the stream go on at waits for notifications of dead ranks, now and from now on, without the data."""

    def launch(self, kernel: Callable[[], Any]) -> None:
        """Runs a callable in the order of a software stream, like a kernel. An exception fails the stream, and is the
        ``__cause__`` of the ``StreamFailed`` that later calls raise.

        Raises ``Unsupported`` on a CUDA stream, where torch or CuPy launch kernels.
        """

    @property
    def outstanding(self) -> int:
        """Submissions that the stream has not passed."""

    @property
    def oldest_wait(self) -> Optional[str]:
        """The wait that blocks the stream, as text."""

    @property
    def cuda_stream(self) -> Optional[int]:
        """The handle of a CUDA stream."""


class Batch:
    """Operations that a stream performs in order. Each method adds one; the end of a ``with`` block posts them.

    An exception in the block drops the batch: nothing is posted, and its sends leave their queues. Operations that
    ``post`` could not post stay in the batch. A batch that is dropped with unposted operations warns
    (``ResourceWarning``). ``str()`` has the calls whose operations are not posted.
    """

    def __enter__(self) -> Batch: ...

    def __exit__(self, kind: Any = None, _error: Any = None, _trace: Any = None) -> bool: ...

    def __len__(self) -> int: ...

    def write(
        self, source: Slice, rank: int, offset: int = 0, *, to: Optional[Segment] = None, queue: Optional[int] = None
    ) -> None:
        """Writes the slice into a rank's part of ``to``, or of the slice's own segment, from an offset on."""

    def write_notify(
        self,
        source: Slice,
        rank: int,
        offset: int = 0,
        id: int = 0,
        value: int = 1,
        *,
        to: Optional[Segment] = None,
        queue: Optional[int] = None,
    ) -> None:
        """``write``, then ``notify``: a reader that sees the notification sees the data. ``Segment.reset`` returns the
        value, a number of 32 bits: this is a team's write with immediate."""

    def notify(
        self, segment: Segment, rank: int, id: int = 0, value: int = 1, *, queue: Optional[int] = None
    ) -> None:
        """Sets a notification of a rank to a value other than 0, after all earlier writes of the queue to that rank."""

    def read(
        self, into: Slice, rank: int, offset: int = 0, *, of: Optional[Segment] = None, queue: Optional[int] = None
    ) -> None:
        """Reads from a rank's part of a segment into the slice. The stream sees the bytes after ``wait_writes``."""

    def fetch_add(
        self,
        into: Slice,
        rank: int,
        offset: int = 0,
        *,
        add: int,
        of: Optional[Segment] = None,
        queue: Optional[int] = None,
    ) -> None:
        """Adds to the 64-bit number at an offset of a rank's part, and fetches its old value into the slice of 8 bytes.
        """

    def compare_swap(
        self,
        into: Slice,
        rank: int,
        offset: int = 0,
        *,
        compare: int,
        swap: int,
        of: Optional[Segment] = None,
        queue: Optional[int] = None,
    ) -> None:
        """Replaces the 64-bit number at an offset of a rank's part if it equals ``compare``, and fetches its old value
        into the slice of 8 bytes."""

    def wait_notification(self, segment: Segment, id: int) -> None:
        """Waits until a notification of this rank is set, and clears it. Later operations see the data written before
        it."""

    def wait_writes(self, segment: Segment, rank: int, *, queue: Optional[int] = None) -> None:
        """Waits until all earlier requests to a rank have arrived, and data read from it is here."""

    def send(self, queue_pair: QueuePair, request: WorkRequest) -> None:
        """Rings the doorbell for a request of a queue pair, which is prepared now."""

    def wait(self, queue: CompletionQueue) -> None:
        """Waits for the next completion of a queue that no other wait has. The CPU still polls it."""

    def wait_value(self, word: Word, value: int, condition: str = "geq") -> None:
        """Waits until a word is ``eq``, ``geq`` (cyclically), ``and`` (has a bit) or ``nor`` (lacks a bit) the value.
        """

    def write_value(self, word: Word, value: int) -> None:
        """Writes a word."""

    def barrier(self) -> None:
        """Orders earlier memory accesses before later ones."""

    def post(self) -> tuple[int, int]:
        """Posts the operations. Returns the memory operations and submissions that this took.

        Raises ``TimedOut`` if the stream has no room within the batch's time, ``StreamFailed``, and errors of the
        stream.
        """

    @property
    def posted(self) -> Optional[tuple[int, int]]:
        """The result of the last post."""


class Graph:
    """A CUDA graph with places for batches."""

    def launch(self, stream: Stream, *batches: Batch, timeout: Optional[float] = 30.0) -> None:
        """Launches the graph with a new batch for each place, of the shape of the captured one."""

    @property
    def batches(self) -> int:
        """The number of places."""


def capture(stream: Stream, steps: Iterable[Batch]) -> Graph:
    """Captures a CUDA stream into a graph of the work that ``steps``, usually a generator, enqueues on it, with a place
    for each batch that it yields. Nothing is performed, and the batches stay as they are."""


# -- Teams


class Bootstrap:
    """A rank of a job that has met the others. It becomes a team."""

    @staticmethod
    def from_env(timeout: Optional[float] = 30.0) -> Bootstrap:
        """Meets the others as described by gdsync run, torchrun, mpirun or srun, or by ``GDSYNC_RANK`` and ``GDSYNC_SIZE``.

        ``GDSYNC_ROOT=host:port`` is the meeting point, which processes of one host do not need.
        """

    @staticmethod
    def join(
        rank: int, size: int, address: str, *, key: Optional[bytes] = None, timeout: Optional[float] = 30.0
    ) -> Bootstrap:
        """Meets the others at ``host:port``, where rank 0 listens, or on this host under a name that only they use.

        They prove ``key`` to each other; an address that other hosts reach requires one.
        """

    @staticmethod
    def threads(size: int, timeout: Optional[float] = 30.0) -> list[Bootstrap]:
        """Returns ranks for threads of this process."""

    @property
    def rank(self) -> int:
        """The number of this rank, from 0 on."""

    @property
    def size(self) -> int:
        """The number of ranks."""

    def all_gather(self, data: Union[bytes, bytearray, list[int]]) -> list[bytes]:
        """Sends a few bytes to all ranks, and returns those of all."""

    def barrier(self) -> None:
        """Returns when all ranks have called it."""


class Team:
    """Ranks that write into each other's segments, connected by a call of all ranks.

    A rank that leaves is dead to ranks that still write to it, so ranks ``flush`` and meet at a ``barrier`` before they
    drop their team: at the end of a ``with`` block, unless it raises.

    Arrays of messages and collectives are in the host's memory, contiguous, and counted in items.
    """

    def __init__(
        self,
        bootstrap: Bootstrap,
        pd: Optional[ProtectionDomain] = None,
        *,
        queues: int = 1,
        connections: str = "auto",
        messages: int = 32768,
    ) -> None:
        """Connects the ranks. ``connections`` is ``each`` (a queue pair to every rank), ``dynamic`` (a few that reach
        all) or ``auto``, which chooses by the size.

        ``messages`` is the longest part of a message that travels at a time: a rank has memory for four of them for each
        other. 0 makes a team without messages, as ranks of other languages do.
        """

    def __enter__(self) -> Team: ...

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None: ...

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
        """``Team(Bootstrap.from_env(timeout), ...)``."""

    @property
    def rank(self) -> int:
        """The number of this rank, from 0 on."""

    @property
    def size(self) -> int:
        """The number of ranks that the team began with."""

    @property
    def members(self) -> list[int]:
        """The ranks that were not dropped."""

    @property
    def dead(self) -> list[tuple[int, str]]:
        """The ranks that are dead and not dropped, with the cause."""

    def allocate(self, nbytes: int, notifications: int = 0, *, gpu: Optional[int] = None) -> Segment:
        """Allocates this rank's part of a segment on the host or that GPU. All ranks call this or ``register`` in the
        same order; their lengths may differ."""

    def register(self, tensor: Any, notifications: int = 0) -> Segment:
        """Makes a tensor this rank's part of a segment, without a copy, as ``ProtectionDomain.register`` does."""

    def queue(self, index: int = 0) -> Queue:
        """Returns a queue for posts by the CPU."""

    def barrier(self) -> None:
        """Returns when all ranks have called it. It does not flush."""

    def flush(self, timeout: Optional[float] = None) -> None:
        """Returns when all posts of all queues to all ranks have arrived, including those that streams have yet to
        reach."""

    def send(self, array: Any, rank: int, timeout: Optional[float] = None) -> None:
        """Sends an array to a rank, which receives it by ``recv``. The array may change when the call returns."""

    def recv(self, array: Any, rank: int, timeout: Optional[float] = None) -> None:
        """Receives a rank's next message into an array of the same length. Raises ``PeerDead`` if the rank is dead."""

    def broadcast(self, array: Any, root: int = 0, timeout: Optional[float] = None) -> None:
        """Sends the root's array into those of all ranks."""

    def gather(
        self,
        array: Any,
        into: Any = None,
        root: int = 0,
        *,
        counts: Optional[Sequence[int]] = None,
        timeout: Optional[float] = None,
    ) -> None:
        """Sends the arrays of all ranks into one of the root, in the order of ranks. ``counts`` has the items of each
        rank, on the root, if they differ."""

    def scatter(
        self,
        array: Any,
        into: Any,
        root: int = 0,
        *,
        counts: Optional[Sequence[int]] = None,
        timeout: Optional[float] = None,
    ) -> None:
        """Sends parts of the root's array to all ranks, in the order of ranks. ``counts`` has the items of each rank, on
        the root, if they differ. Other ranks give None for the array."""

    def all_to_all(
        self,
        array: Any,
        into: Any,
        *,
        send_counts: Optional[Sequence[int]] = None,
        recv_counts: Optional[Sequence[int]] = None,
        timeout: Optional[float] = None,
    ) -> None:
        """Sends a part of the array to each rank, and receives one from each, in the order of ranks. The counts have the
        items of each part, if they differ."""

    def all_reduce(self, array: Any, operation: str = "sum", timeout: Optional[float] = None) -> None:
        """Replaces the array by the reduction of those of all ranks, with the same bits on all.

        The operations are those of ``plan``. The memory for it stays for arrays of the same length and type. Raises
        ``PeerDead`` on all ranks, with the array unchanged, if one has died before it gave its numbers.
        """

    def barrier_async(self) -> Awaitable[None]:
        """``barrier`` for asyncio. A canceled one goes on: the other ranks count on it."""

    def flush_async(self, timeout: Optional[float] = None) -> Awaitable[None]:
        """``flush`` for asyncio."""

    def shrink(self) -> list[int]:
        """Continues without the dead ranks: all survivors call it and get the dropped ranks."""

    def wait(self, segment: Segment, ids: Optional[Ids] = None, timeout: Optional[float] = None) -> Awaitable[int]:
        """``Segment.wait`` for asyncio."""


class Segment:
    """Memory of which every rank has a part, with notifications: words that are 0 until a rank sets them.

    ``segment[a:b]`` is a part of this rank's, in bytes. ``numpy.asarray``, ``cupy.asarray`` and ``torch.as_tensor``
    show it without a copy.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, range: slice) -> Slice: ...

    @property
    def notifications(self) -> int:
        """The number of this rank's notifications, which count from 0."""

    @property
    def tensor(self) -> Any:
        """The registered object; None if the memory was allocated."""

    def read(self, offset: int = 0, nbytes: Optional[int] = None) -> bytes:
        """Copies bytes out of this rank's part, by the CPU."""

    def write(self, offset: int, data: Union[bytes, bytearray]) -> None:
        """Copies bytes into this rank's part, by the CPU."""

    def word32(self, offset: int) -> Word:
        """Returns a 32-bit word of this rank's part."""

    def word64(self, offset: int) -> Word:
        """Returns a 64-bit word of this rank's part."""

    def wait(self, ids: Optional[Ids] = None, timeout: Optional[float] = None) -> int:
        """Waits until a notification of ``ids``, or any, is set, and returns the lowest such number. It stays set until
        ``reset``.

        Raises ``TimedOut`` with the rank that has not set it; ``PeerDead`` if a rank that might set it is dead; ``Unsupported`` if a GPU does not order
        writes for the CPU: let a stream wait.
        """

    def wait_async(self, ids: Optional[Ids] = None, timeout: Optional[float] = None) -> Awaitable[int]:
        """``wait`` for asyncio."""

    def reset(self, id: int) -> int:
        """Clears a notification and returns its old value; 0 if it was not set."""

    def expect_from(self, ids: Ids, rank: Optional[int]) -> None:
        """Declares which rank sets these notifications (None: any): only its death ends waits for them."""

    def check(self, id: int) -> None:
        """Raises ``PeerDead`` if a stream's wait for this notification was ended because a rank is dead."""

    @property
    def __array_interface__(self) -> dict[str, Any]: ...

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...


class Queue:
    """A team's queue for posts by the CPU. ``timeout`` is how long a post waits for room."""

    @property
    def index(self) -> int:
        """The number of the queue in its team."""

    def write(
        self, source: Slice, rank: int, offset: int = 0, *, to: Optional[Segment] = None, timeout: Optional[float] = None
    ) -> None:
        """Writes a slice, which must not change before ``flush`` has returned."""

    def write_notify(
        self,
        source: Slice,
        rank: int,
        offset: int = 0,
        id: int = 0,
        value: int = 1,
        *,
        to: Optional[Segment] = None,
        timeout: Optional[float] = None,
    ) -> None:
        """``write``, then ``notify``: the value arrives with the data, as the immediate number of a queue pair's write."""

    def notify(
        self, segment: Segment, rank: int, id: int = 0, value: int = 1, *, timeout: Optional[float] = None
    ) -> None:
        """Sets a notification of a rank."""

    def read(
        self, into: Slice, rank: int, offset: int = 0, *, of: Optional[Segment] = None, timeout: Optional[float] = None
    ) -> None:
        """Reads into a slice: the bytes are there when ``flush`` has returned."""

    def fetch_add(
        self,
        into: Slice,
        rank: int,
        offset: int = 0,
        *,
        add: int,
        of: Optional[Segment] = None,
        timeout: Optional[float] = None,
    ) -> None:
        """Adds to a 64-bit number of a rank and fetches its old value into the slice."""

    def compare_swap(
        self,
        into: Slice,
        rank: int,
        offset: int = 0,
        *,
        compare: int,
        swap: int,
        of: Optional[Segment] = None,
        timeout: Optional[float] = None,
    ) -> None:
        """Replaces a 64-bit number of a rank if it equals ``compare``, and fetches its old value into the slice."""

    def flush(self, rank: Optional[int] = None, timeout: Optional[float] = None) -> None:
        """Returns when all posts to a rank or to all have arrived. Raises ``PeerDead`` and ``TimedOut``."""


class Plan:
    """A collective that all ranks have agreed on, with its own segment. Each round is posted on a stream."""

    @property
    def segment(self) -> Segment:
        """The segment of input and output."""

    @property
    def round(self) -> int:
        """The next round."""

    def input(self, round: Optional[int] = None) -> tuple[int, int]:
        """Returns the first byte and the end of this rank's input of a round (default: the next) in the segment."""

    def output(self, round: Optional[int] = None) -> tuple[int, int]:
        """Returns the first byte and the end of this rank's output of a round."""

    def post(self, stream: Stream) -> int:
        """Posts the next round on a stream. Returns the number of its memory operations."""

    def check(self) -> None:
        """Raises ``PeerDead`` if a member is dead and waits of streams were ended."""


def plan(
    team: Team,
    kind: str,
    block: int = 0,
    *,
    root: int = 0,
    element: str = "f32",
    operation: str = "sum",
    queue: int = 0,
    gpu: Optional[int] = None,
) -> Plan:
    """Creates a plan with all ranks of a team: ``barrier``, ``all_gather``, ``all_to_all``, ``all_reduce``, ``broadcast``
    or ``reduce_scatter`` of blocks of ``block`` bytes, in memory of the host or of a GPU.

    ``element`` is the type of the numbers of a reduction: ``f32``, ``f64``, or ``i8`` to ``u64``; ``operation`` is
    ``sum``, ``product``, ``min``, ``max``, or a logical or bitwise one. An all-reduce works in place.
    """


def run_ranks(size: int, rank: Callable[[Team], T], *, queues: int = 1, timeout: float = 30.0) -> list[T]:
    """Runs ``rank(team)`` in threads, each a rank of one team on the software card, and returns their results.

    Raises the first exception of a rank that is not about the other ranks.
    """


# -- Queue pairs


class CompletionQueue:
    """A completion queue."""

    def __init__(self, pd: ProtectionDomain, entries: int = 256) -> None:
        """Creates a queue with a completion channel, so that waits sleep."""

    def poll(self) -> Optional[Completion]:
        """Returns the next completion, if there is one."""

    def wait(self, timeout: Optional[float] = None) -> Completion:
        """Waits for the next completion. Raises ``TimedOut`` with the states of the queue pairs and of their peers."""

    def wait_async(self, timeout: Optional[float] = None) -> Awaitable[Completion]:
        """``wait`` for asyncio. A canceled wait loses no completion."""


class Completion:
    """The completion of a work request."""

    @property
    def wr_id(self) -> int:
        """The program's number."""

    @property
    def kind(self) -> str:
        """``send``, ``write``, ``read``, ``fetch_add``, ``compare_swap``, ``receive``, ``nop`` or ``other``."""

    @property
    def nbytes(self) -> int:
        """Bytes received, read or fetched."""

    @property
    def immediate(self) -> Optional[int]:
        """The number that the other side sent with the data."""

    @property
    def error(self) -> Optional[str]:
        """The error, if it failed."""


class WorkRequest:
    """A work request of a queue pair."""

    @staticmethod
    def send(
        *slices: Slice, immediate: Optional[int] = None, wr_id: int = 0, signaled: bool = True
    ) -> WorkRequest:
        """Sends slices into a receive of the other side, whose completion has the immediate number of 32 bits."""

    @staticmethod
    def write(
        *slices: Slice,
        remote: RemoteMemory,
        immediate: Optional[int] = None,
        wr_id: int = 0,
        signaled: bool = True,
    ) -> WorkRequest:
        """Writes slices to remote memory. With an immediate number it takes a receive of the other side, whose completion
        has the number."""

    @staticmethod
    def read(*slices: Slice, remote: RemoteMemory, wr_id: int = 0, signaled: bool = True) -> WorkRequest:
        """Reads remote memory into slices."""

    @staticmethod
    def fetch_add(
        result: Slice, *, remote: RemoteMemory, add: int, wr_id: int = 0, signaled: bool = True
    ) -> WorkRequest:
        """Adds to 8 remote bytes atomically."""

    @staticmethod
    def compare_swap(
        result: Slice, *, remote: RemoteMemory, compare: int, swap: int, wr_id: int = 0, signaled: bool = True
    ) -> WorkRequest:
        """Replaces 8 remote bytes atomically if they equal ``compare``."""

    @staticmethod
    def nop(*, wr_id: int = 0, signaled: bool = True) -> WorkRequest:
        """Only completes."""


class QueuePair:
    """One end of a reliable connection."""

    def __init__(
        self,
        pd: ProtectionDomain,
        *,
        send_depth: int = 128,
        recv_depth: int = 128,
        send_cq: Optional[CompletionQueue] = None,
        recv_cq: Optional[CompletionQueue] = None,
        trigger: Optional[Trigger] = None,
    ) -> None:
        """Creates missing completion queues; with a trigger, that word releases its sends."""

    @property
    def endpoint(self) -> str:
        """The endpoint for the other side, over any channel."""

    def connect(self, endpoint: str) -> None:
        """Connects to the other side's endpoint. Both sides do this."""

    def post_recv(self, *slices: Slice, wr_id: int = 0) -> None:
        """Posts a receive."""

    def post_send(self, request: WorkRequest) -> None:
        """Posts a request by the CPU."""

    @property
    def send_cq(self) -> CompletionQueue:
        """The queue of completions of sends."""

    @property
    def recv_cq(self) -> CompletionQueue:
        """The queue of completions of receives."""

    @property
    def failure(self) -> Optional[str]:
        """The cause of a failure."""


class Trigger:
    """A word that releases sends of queue pairs, for which the card waits."""

    def __init__(self, pd: ProtectionDomain, *, master: Optional[int] = None) -> None:
        """``master`` makes one queue wait for the word, for that many sends. Raises ``Unsupported`` if the card cannot
        wait for words."""

    @property
    def address(self) -> int:
        """The word's address."""

    @staticmethod
    def word_of(ticket: int) -> int:
        """Returns the word's value, as a native number, once a ticket is released."""

    def release(self, ticket: int) -> None:
        """Releases a ticket and all below it by the CPU."""


class Persistent:
    """A send, a write or a receive that is prepared once and started many times."""

    @staticmethod
    def send(queue_pair: QueuePair, *slices: Slice) -> Persistent:
        """Prepares a send of slices."""

    @staticmethod
    def write(queue_pair: QueuePair, *slices: Slice, remote: RemoteMemory) -> Persistent:
        """Prepares a write of slices to remote memory."""

    @staticmethod
    def receive(queue_pair: QueuePair, *slices: Slice) -> Persistent:
        """Prepares a receive into slices."""

    def complete(self, timeout: Optional[float] = None) -> Completion:
        """Waits for the oldest start's completion and returns it."""

    @property
    def is_active(self) -> bool:
        """True if a start has not completed."""


def start_all(requests: Sequence[Persistent], stream: Stream, timeout: Optional[float] = 30.0) -> None:
    """Starts requests on a stream, in one batch."""


def wait_all(requests: Sequence[Persistent], stream: Stream, timeout: Optional[float] = 30.0) -> None:
    """Lets a stream wait for started requests, in one batch."""


# -- The command


def command() -> str:
    """Returns the path of this package's command ``gdsync``."""


def doctor() -> dict[str, Any]:
    """Returns what works for GPUDirect on this machine, what does not, and remedies: the row of ``gdsync doctor
    --json``."""


def explain(batch: str, *, collect_from: Optional[int] = None) -> dict[str, Any]:
    """Returns a stream's operations for a batch and their cost: the row of ``gdsync explain --json``.

    ``batch`` is the text that the command reads, one operation per line. Runs of waits for at least ``collect_from``
    completion queues are the card's.
    """


# -- Exceptions


class Error(Exception):
    """The base class of gdsync's exceptions."""


class InvalidArgument(Error, ValueError):
    """An invalid argument, with the reason."""


class Unsupported(Error):
    """The machine, the card, the GPU or the stream does not support it."""


class WouldBlock(Error):
    """There is no room now: the same call may succeed later."""


class TimedOut(Error, TimeoutError):
    """The call's time has passed."""


class PeerDead(Error):
    """A rank is dead, and the call would wait for it or address it.

    ``rank`` is its number, ``cause`` how this rank knows.
    """

    rank: int
    cause: str

    def __init__(self, text: str, rank: int = -1, cause: str = "") -> None: ...


class ConnectionFailed(Error, ConnectionError):
    """A connection has failed or cannot be established."""


class DeviceError(Error):
    """The card's libraries or the CUDA driver refuse."""


class StreamFailed(Error):
    """The stream has failed permanently."""
