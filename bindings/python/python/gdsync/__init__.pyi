"""GPUDirect Async for Python: RDMA in the order of CUDA streams.

Lengths and offsets are in bytes, times in seconds; ``timeout=None`` waits without a limit. Calls that wait release the
GIL and end with an exception when a signal's handler raises one, as Ctrl-C does. Objects may be used by several threads.
"""

from typing import Any, Awaitable, Callable, Iterable, Optional, Sequence, TypeVar, Union

T = TypeVar("T")
Ids = Union[int, range]

# -- Cards and memory


class Device:
    """A card."""

    def __init__(self, name: Optional[str] = None) -> None:
        """Opens the card of that name (``devices()``); without one, the software card.

        Raises ``Unsupported`` where there is no such card, or none of the system's libraries.
        """

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def is_software(self) -> bool:
        """Whether it is a software card."""


def devices() -> list[str]:
    """The names of the cards of this machine, software first."""


class ProtectionDomain:
    """Memory and queue pairs of one card that may be used together."""

    def __init__(self, device: Optional[Device] = None) -> None:
        """A domain of the card; without one, of the software card."""

    def register(self, tensor: Any, *, remote: bool = True) -> MemoryRegion:
        """Registers the memory of a tensor, an array or a buffer, without a copy.

        The tensor has DLPack, ``__cuda_array_interface__`` or the buffer protocol. It is kept until the card and
        streams have done their last work with it. ``remote`` says whether other sides may read and write it. To
        register memory again that is registered is cheap.

        Raises ``InvalidArgument`` for a tensor that is not contiguous, is read-only, or has no bytes, ``Unsupported``
        for one on a device that is no CUDA GPU, ``DeviceError`` where the card refuses.
        """

    def allocate(self, nbytes: int, *, remote: bool = True, gpu: Optional[int] = None) -> MemoryRegion:
        """Allocates zeroed memory, of the host or of that GPU, and registers it."""

    @property
    def registrations(self) -> tuple[int, int, int]:
        """Registrations held, requests that one at hand has served, and requests that had to register."""


class MemoryRegion:
    """Registered memory. ``region[a:b]`` is a part of it, in bytes.

    Where it is the host's, ``numpy.asarray(region)`` shows it as bytes, without a copy; where it is a GPU's,
    ``cupy.asarray(region)`` and ``torch.as_tensor(region, device="cuda")`` do.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, range: slice) -> Slice: ...

    @property
    def tensor(self) -> Any:
        """What was registered; None where the memory was allocated here."""

    @property
    def address(self) -> int:
        """The address of the first byte."""

    @property
    def remote(self) -> RemoteMemory:
        """What a remote side has to know to reach it."""

    def word32(self, offset: int) -> Word:
        """The 32-bit word at an offset that is a multiple of 4, for a stream to wait for or to write."""

    def word64(self, offset: int) -> Word:
        """The 64-bit word at an offset that is a multiple of 8."""

    def read(self, offset: int = 0, nbytes: Optional[int] = None) -> bytes:
        """A copy of the bytes, by the CPU, in the order of no stream."""

    def write(self, offset: int, data: Union[bytes, bytearray]) -> None:
        """Copies bytes in, by the CPU, in the order of no stream."""

    @property
    def __array_interface__(self) -> dict[str, Any]: ...

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...


class Slice:
    """A part of registered memory, or of a segment, for a request."""

    def __len__(self) -> int: ...


class RemoteMemory:
    """What one side has to know to reach memory of the other: ``str()`` of it travels by any channel."""

    def __init__(self, text: str) -> None:
        """From what ``str()`` of it was on the other side."""

    def __len__(self) -> int: ...

    def __getitem__(self, range: slice) -> RemoteMemory: ...


class Word:
    """A word of registered memory, for a stream to wait for or to write."""

    def load(self) -> int:
        """Its value now."""

    def store(self, value: int) -> None:
        """Sets its value, by the CPU."""


# -- Streams and batches


class Stream:
    """A stream on which batches are posted: a software one, or a CUDA stream of another library."""

    def __init__(self, stream: Any = None, *, always_signal: bool = False) -> None:
        """Wraps a stream of torch or CuPy, an object with ``cuda_stream``, ``ptr`` or ``__cuda_stream__``, or a raw
        handle; without one, starts a software stream.

        The object is kept as long as this one. ``always_signal`` has every batch say when the stream has passed it,
        which takes an operation more, and lets the stream be asked after its library has destroyed it.
        """

    def batch(self, *, queue: int = 0, merged: bool = True, timeout: Optional[float] = 30.0) -> Batch:
        """A batch for this stream, to be posted at the end of a ``with`` block.

        ``queue`` is that of teams by which it sends: streams that send need one each. ``merged`` says whether
        operations may share memory operations. ``timeout`` is how long its calls wait for room.
        """

    def synchronize(self, timeout: Optional[float] = None) -> None:
        """Returns when the stream has performed everything. Raises ``TimedOut``, with the wait at which it stands,
        and ``StreamFailed``."""

    def synchronize_async(self, timeout: Optional[float] = None) -> Awaitable[None]:
        """``synchronize`` for asyncio."""

    def launch(self, kernel: Callable[[], Any]) -> None:
        """Runs a callable in the order of a software stream, as a kernel would run. An exception fails the stream.

        Raises ``Unsupported`` on a CUDA stream: kernels are launched there by torch or CuPy.
        """

    @property
    def outstanding(self) -> int:
        """Submissions that the stream has not passed."""

    @property
    def oldest_wait(self) -> Optional[str]:
        """The wait at which the stream stands, in words."""

    @property
    def cuda_stream(self) -> Optional[int]:
        """The handle of a CUDA stream."""


class Batch:
    """Operations that a stream performs in order. Each method adds one; the end of a ``with`` block posts them.

    An exception in the block drops the batch: nothing is posted, and its sends leave their queues. What ``post`` could
    not post stays in the batch.
    """

    def __enter__(self) -> Batch: ...

    def __exit__(self, kind: Any = None, _error: Any = None, _trace: Any = None) -> bool: ...

    def __len__(self) -> int: ...

    def write(
        self, source: Slice, rank: int, offset: int = 0, *, to: Optional[Segment] = None, queue: Optional[int] = None
    ) -> None:
        """Writes the slice into a rank's part of a segment, from an offset on: of ``to``, or of the slice's own."""

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
        """``write``, then ``notify``: who sees the notification sees the data."""

    def notify(
        self, segment: Segment, rank: int, id: int = 0, value: int = 1, *, queue: Optional[int] = None
    ) -> None:
        """Sets a notification of a rank, to a value that is not 0, after what the queue has written there before."""

    def read(
        self, into: Slice, rank: int, offset: int = 0, *, of: Optional[Segment] = None, queue: Optional[int] = None
    ) -> None:
        """Reads from a rank's part of a segment into the slice. The stream sees the bytes behind ``wait_writes``."""

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
        """Adds to the 64-bit number at an offset of a rank's part; what it was comes into the slice of 8 bytes."""

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
        """Replaces the 64-bit number at an offset of a rank's part where it is ``compare``; what it was comes into
        the slice of 8 bytes."""

    def wait_notification(self, segment: Segment, id: int) -> None:
        """Waits until a notification of this rank is set, and clears it. What follows sees what came before it."""

    def wait_writes(self, segment: Segment, rank: int, *, queue: Optional[int] = None) -> None:
        """Waits until everything posted to a rank so far has arrived, and what was read from it is here."""

    def send(self, queue_pair: QueuePair, request: WorkRequest) -> None:
        """Rings the card for a request of a queue pair, which is prepared now."""

    def wait(self, queue: CompletionQueue) -> None:
        """Waits for the next completion of a queue that no other wait is for. The CPU still has to poll it."""

    def wait_value(self, word: Word, value: int, condition: str = "geq") -> None:
        """Waits until a word is ``eq``, ``geq`` (cyclically), ``and`` (has a bit) or ``nor`` (lacks a bit) the value."""

    def write_value(self, word: Word, value: int) -> None:
        """Writes a word."""

    def barrier(self) -> None:
        """Orders memory accesses before it with those behind it."""

    def post(self) -> tuple[int, int]:
        """Posts what was added. Returns the memory operations and submissions that it took.

        Raises ``TimedOut`` where the stream has no room within the batch's time, ``StreamFailed``, and what the
        stream refuses.
        """

    @property
    def posted(self) -> Optional[tuple[int, int]]:
        """What the last post has returned."""


class Graph:
    """A CUDA graph with places for batches."""

    def launch(self, stream: Stream, *batches: Batch, timeout: Optional[float] = 30.0) -> None:
        """Launches it, with a fresh batch for each place, of the shape of the one that was captured there."""

    @property
    def batches(self) -> int:
        """How many places it has."""


def capture(stream: Stream, steps: Iterable[Batch]) -> Graph:
    """Captures a CUDA stream: a graph of what ``steps``, a generator as a rule, enqueues on it while it runs, with a
    place for each batch that it yields. Nothing is performed, and the batches stay as they are."""


# -- Teams


class Bootstrap:
    """A rank of a job that has met the others. A team is made of it."""

    @staticmethod
    def from_env(timeout: Optional[float] = 30.0) -> Bootstrap:
        """As torchrun, mpirun or srun has started this process, or ``GDSYNC_RANK`` and ``GDSYNC_SIZE`` say.

        ``GDSYNC_ROOT=host:port`` says where the ranks meet, which processes of one host need not have.
        """

    @staticmethod
    def join(
        rank: int, size: int, address: str, *, key: Optional[bytes] = None, timeout: Optional[float] = 30.0
    ) -> Bootstrap:
        """Meets the others at ``host:port``, where rank 0 listens, or on this host under a name that only they have.

        ``key`` is what they prove to each other; an address that other hosts reach needs one.
        """

    @staticmethod
    def threads(size: int, timeout: Optional[float] = 30.0) -> list[Bootstrap]:
        """Ranks that are threads of this process, one value for each."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_gather(self, data: Union[bytes, bytearray, list[int]]) -> list[bytes]:
        """Sends a few bytes to all ranks, and returns those of all."""

    def barrier(self) -> None:
        """Returns when all ranks have called it."""


class Team:
    """Ranks that write into each other's segments. All make it together.

    To ranks that still write to it, a rank that leaves is dead: ranks ``flush``, and meet at a ``barrier``, before they
    drop their team.
    """

    def __init__(
        self, bootstrap: Bootstrap, pd: Optional[ProtectionDomain] = None, *, queues: int = 1, connections: str = "auto"
    ) -> None:
        """Connects the ranks. ``connections`` is ``each`` (a queue pair to every rank), ``dynamic`` (a few that reach
        all) or ``auto``, which chooses by the size."""

    @staticmethod
    def from_env(
        pd: Optional[ProtectionDomain] = None,
        *,
        queues: int = 1,
        connections: str = "auto",
        timeout: Optional[float] = 30.0,
    ) -> Team:
        """``Team(Bootstrap.from_env(timeout), ...)``."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def members(self) -> list[int]:
        """The ranks that were not dropped."""

    @property
    def dead(self) -> list[tuple[int, str]]:
        """The ranks that are dead and not dropped, and how this rank knows."""

    def allocate(self, nbytes: int, notifications: int = 0, *, gpu: Optional[int] = None) -> Segment:
        """Allocates this rank's part of a segment, of the host or of that GPU. All ranks call this or ``register``, in
        the same order; their lengths may differ."""

    def register(self, tensor: Any, notifications: int = 0) -> Segment:
        """Makes a tensor this rank's part of a segment, without a copy, as ``ProtectionDomain.register`` does."""

    def queue(self, index: int = 0) -> Queue:
        """A queue, for posts by the CPU."""

    def barrier(self) -> None:
        """Returns when all ranks have called it. It flushes nothing."""

    def flush(self, timeout: Optional[float] = None) -> None:
        """Returns when everything posted, by all queues to all ranks, has arrived, also what streams still have to
        reach."""

    def shrink(self) -> list[int]:
        """Goes on without the dead ranks: all survivors call it, and get the ranks that were dropped."""

    def wait(self, segment: Segment, ids: Optional[Ids] = None, timeout: Optional[float] = None) -> Awaitable[int]:
        """``Segment.wait`` for asyncio."""


class Segment:
    """Memory of which every rank has a part, with notifications: words that are 0 until a rank sets them.

    ``segment[a:b]`` is a part of this rank's, in bytes. ``numpy.asarray``, ``cupy.asarray`` and ``torch.as_tensor`` show
    it without a copy.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, range: slice) -> Slice: ...

    @property
    def notifications(self) -> int:
        """Notifications of this rank, numbered from 0."""

    @property
    def tensor(self) -> Any:
        """What was registered; None where the memory was allocated."""

    def read(self, offset: int = 0, nbytes: Optional[int] = None) -> bytes:
        """A copy of bytes of this rank's part, by the CPU."""

    def write(self, offset: int, data: Union[bytes, bytearray]) -> None:
        """Copies bytes into this rank's part, by the CPU."""

    def word32(self, offset: int) -> Word:
        """A 32-bit word of this rank's part."""

    def word64(self, offset: int) -> Word:
        """A 64-bit word of this rank's part."""

    def wait(self, ids: Optional[Ids] = None, timeout: Optional[float] = None) -> int:
        """Waits until a notification is set, one of ``ids`` or any, and returns the lowest such number. It stays set
        until ``reset``.

        Raises ``TimedOut``; ``PeerDead`` where a rank that might set it is dead; ``Unsupported`` where a GPU shows the
        CPU no order: let a stream wait.
        """

    def wait_async(self, ids: Optional[Ids] = None, timeout: Optional[float] = None) -> Awaitable[int]:
        """``wait`` for asyncio."""

    def reset(self, id: int) -> int:
        """Clears a notification, and returns what it was: 0 where it was not set."""

    def expect_from(self, ids: Ids, rank: Optional[int]) -> None:
        """Says which rank sets these notifications (None: any): its death alone ends waits for them."""

    def check(self, id: int) -> None:
        """Raises ``PeerDead`` where a stream's wait for this notification was ended because a rank is dead."""

    @property
    def __array_interface__(self) -> dict[str, Any]: ...

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...


class Queue:
    """A queue of a team, for posts by the CPU. ``timeout`` is how long a post waits for room."""

    @property
    def index(self) -> int: ...

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
        """``write``, then ``notify``."""

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
        """Adds to a 64-bit number of a rank; what it was comes into the slice."""

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
        """Replaces a 64-bit number of a rank where it is ``compare``; what it was comes into the slice."""

    def flush(self, rank: Optional[int] = None, timeout: Optional[float] = None) -> None:
        """Returns when everything posted, to a rank or to all, has arrived. Raises ``PeerDead`` and ``TimedOut``."""


class Plan:
    """A collective that all ranks have agreed on, with a segment of its own. Each round is posted on a stream."""

    @property
    def segment(self) -> Segment:
        """Where input and output lie."""

    @property
    def round(self) -> int:
        """The round that is posted next."""

    def input(self, round: Optional[int] = None) -> tuple[int, int]:
        """The first byte and the end of this rank's input of a round, in the segment; of the next one by default."""

    def output(self, round: Optional[int] = None) -> tuple[int, int]:
        """The first byte and the end of this rank's output of a round."""

    def post(self, stream: Stream) -> int:
        """Posts the next round on a stream. Returns its memory operations."""

    def check(self) -> None:
        """Raises ``PeerDead`` where a member is dead, and waits of streams were ended."""


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
    """Makes a plan with all ranks of a team: ``barrier``, ``all_gather``, ``all_to_all``, ``broadcast`` or
    ``reduce_scatter`` of blocks of so many bytes, in memory of the host or of a GPU."""


def run_ranks(size: int, rank: Callable[[Team], T], *, queues: int = 1, timeout: float = 30.0) -> list[T]:
    """Runs ``rank(team)`` in threads, each a rank of one team on the software card, and returns what each has returned."""


# -- Queue pairs


class CompletionQueue:
    """Where work completes."""

    def __init__(self, pd: ProtectionDomain, entries: int = 256) -> None:
        """A queue with a completion channel, so that waits sleep."""

    def poll(self) -> Optional[Completion]:
        """The next completion, if there is one."""

    def wait(self, timeout: Optional[float] = None) -> Completion:
        """The next completion, once there is one."""

    def wait_async(self, timeout: Optional[float] = None) -> Awaitable[Completion]:
        """``wait`` for asyncio. A wait that is cancelled loses no completion."""


class Completion:
    """How a work request ended."""

    @property
    def wr_id(self) -> int:
        """The number that the program gave it."""

    @property
    def kind(self) -> str:
        """``send``, ``write``, ``read``, ``fetch_add``, ``compare_swap``, ``receive``, ``nop`` or ``other``."""

    @property
    def nbytes(self) -> int:
        """Bytes received, read or fetched."""

    @property
    def immediate(self) -> Optional[int]: ...

    @property
    def error(self) -> Optional[str]:
        """Why it failed, if it did."""


class WorkRequest:
    """What a queue pair is asked to do."""

    @staticmethod
    def send(*slices: Slice, wr_id: int = 0, signaled: bool = True) -> WorkRequest:
        """Sends slices into a receive of the other side."""

    @staticmethod
    def write(*slices: Slice, remote: RemoteMemory, wr_id: int = 0, signaled: bool = True) -> WorkRequest:
        """Writes slices to remote memory."""

    @staticmethod
    def read(*slices: Slice, remote: RemoteMemory, wr_id: int = 0, signaled: bool = True) -> WorkRequest:
        """Reads remote memory into slices."""

    @staticmethod
    def fetch_add(
        result: Slice, *, remote: RemoteMemory, add: int, wr_id: int = 0, signaled: bool = True
    ) -> WorkRequest:
        """Adds to 8 remote bytes, as one step."""

    @staticmethod
    def compare_swap(
        result: Slice, *, remote: RemoteMemory, compare: int, swap: int, wr_id: int = 0, signaled: bool = True
    ) -> WorkRequest:
        """Replaces 8 remote bytes where they are ``compare``, as one step."""

    @staticmethod
    def nop(*, wr_id: int = 0, signaled: bool = True) -> WorkRequest:
        """Does nothing but complete."""


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
        """With completion queues of its own, where none are given; with a trigger, that word releases its sends."""

    @property
    def endpoint(self) -> str:
        """What the other side has to know, to be sent by any channel."""

    def connect(self, endpoint: str) -> None:
        """Connects with the other side's endpoint. Both sides do this."""

    def post_recv(self, *slices: Slice, wr_id: int = 0) -> None:
        """Posts a receive."""

    def post_send(self, request: WorkRequest) -> None:
        """Posts a request by the CPU."""

    @property
    def send_cq(self) -> CompletionQueue: ...

    @property
    def recv_cq(self) -> CompletionQueue: ...

    @property
    def failure(self) -> Optional[str]:
        """Why it has failed, if it has."""


class Trigger:
    """A word that releases sends of queue pairs, for which the card waits."""

    def __init__(self, pd: ProtectionDomain, *, master: Optional[int] = None) -> None:
        """``master`` has one queue wait for the word, for that many sends. Raises ``Unsupported`` where the card waits
        for no words."""

    @property
    def address(self) -> int:
        """Where the word is."""

    @staticmethod
    def word_of(ticket: int) -> int:
        """What the word holds, as a native number, once a ticket is released."""

    def release(self, ticket: int) -> None:
        """Releases a ticket and all below it, by the CPU."""


class Persistent:
    """A send, a write or a receive that is prepared once and started many times."""

    @staticmethod
    def send(queue_pair: QueuePair, *slices: Slice) -> Persistent: ...

    @staticmethod
    def write(queue_pair: QueuePair, *slices: Slice, remote: RemoteMemory) -> Persistent: ...

    @staticmethod
    def receive(queue_pair: QueuePair, *slices: Slice) -> Persistent: ...

    def complete(self, timeout: Optional[float] = None) -> Completion:
        """How the oldest start ended, once it has."""

    @property
    def is_active(self) -> bool:
        """Whether a start has not completed."""


def start_all(requests: Sequence[Persistent], stream: Stream, timeout: Optional[float] = 30.0) -> None:
    """Starts requests on a stream, in one batch."""


def wait_all(requests: Sequence[Persistent], stream: Stream, timeout: Optional[float] = 30.0) -> None:
    """Has a stream wait for requests that were started, in one batch."""


# -- The command


def command() -> str:
    """The path of the command ``gdsync`` that this package carries."""


def doctor() -> dict[str, Any]:
    """What of this machine works for GPUDirect, what does not, and what to do about it: the row of
    ``gdsync doctor --json``."""


def explain(batch: str, *, collect_from: Optional[int] = None) -> dict[str, Any]:
    """What a stream will do for a batch, and what it costs: the row of ``gdsync explain --json``. ``batch`` is the text
    that the command reads, one operation to a line."""


# -- Exceptions


class Error(Exception):
    """Whatever gdsync refuses, or fails at."""


class InvalidArgument(Error, ValueError):
    """An argument that cannot be, with the reason."""


class Unsupported(Error):
    """The machine, the card, the GPU or the stream cannot do it."""


class WouldBlock(Error):
    """There is no room now: the same call may succeed later."""


class TimedOut(Error, TimeoutError):
    """The time that the call was given has passed."""


class PeerDead(Error):
    """A rank is dead, and the call would wait for it or address it."""

    rank: int
    cause: str

    def __init__(self, text: str, rank: int = -1, cause: str = "") -> None: ...


class ConnectionFailed(Error, ConnectionError):
    """A connection has failed, or cannot be made."""


class DeviceError(Error):
    """The card's libraries, or the CUDA driver, refuse."""


class StreamFailed(Error):
    """The stream has failed for good."""
