"""GPUDirect Async for Python: RDMA in the order of CUDA streams.

The CPU prepares writes, sends and waits; a CUDA stream rings the card and waits for it. Tensors are registered as they
are. Without a card or a GPU, a software card and software streams take their place.
"""

import atexit as _atexit

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
    Team,
    Trigger,
    Word,
    WorkRequest,
    capture,
    devices,
    plan,
    start_all,
    wait_all,
    _end,
)
from ._threads import run_ranks
from ._tool import command, doctor, explain

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
