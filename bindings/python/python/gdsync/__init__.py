"""The docstring of the package, as those of all its members, is that of its type stub, `__init__.pyi`."""

import atexit as _atexit

from ._documentation import DOCSTRINGS as _docstrings
from ._errors import (
    ConnectionFailed,
    DeviceError,
    Error,
    InvalidArgument,
    PeerDead,
    StreamFailed,
    TimedOut,
    Unsupported,
    WouldBlock,
)
from ._gdsync import (
    Batch,
    Bootstrap,
    Completion,
    CompletionQueue,
    Device,
    Graph,
    MemoryRegion,
    Persistent,
    Plan,
    ProtectionDomain,
    Queue,
    QueuePair,
    RemoteMemory,
    Segment,
    Slice,
    Stream,
    Trigger,
    Word,
    WorkRequest,
    capture,
    devices,
    plan,
    start_all,
    wait_all,
    __version__,
    _end,
)
from ._team import Team
from ._threads import run_ranks
from ._tool import command, doctor, explain

__doc__ = _docstrings[""]

# Objects that the library drops later find no interpreter to release them.
_atexit.register(_end)

__all__ = [
    "Batch",
    "Bootstrap",
    "Completion",
    "CompletionQueue",
    "ConnectionFailed",
    "Device",
    "DeviceError",
    "Error",
    "Graph",
    "InvalidArgument",
    "MemoryRegion",
    "PeerDead",
    "Persistent",
    "Plan",
    "ProtectionDomain",
    "Queue",
    "QueuePair",
    "RemoteMemory",
    "Segment",
    "Slice",
    "Stream",
    "StreamFailed",
    "Team",
    "TimedOut",
    "Trigger",
    "Unsupported",
    "Word",
    "WorkRequest",
    "WouldBlock",
    "capture",
    "command",
    "devices",
    "doctor",
    "explain",
    "plan",
    "run_ranks",
    "start_all",
    "wait_all",
]
