"""The exceptions of gdsync. Each has the library's text: the value, the limit and the remedy."""

from __future__ import annotations

from ._documentation import documented

@documented
class Error(Exception):
    pass


@documented
class InvalidArgument(Error, ValueError):
    pass


@documented
class Unsupported(Error):
    pass


@documented
class WouldBlock(Error):
    pass


@documented
class TimedOut(Error, TimeoutError):
    pass


@documented
class PeerDead(Error):
    rank: int
    cause: str

    def __init__(self, text: str, rank: int = -1, cause: str = "") -> None:
        super().__init__(text)
        self.rank = rank
        self.cause = cause


@documented
class ConnectionFailed(Error, ConnectionError):
    pass


@documented
class DeviceError(Error):
    pass


@documented
class StreamFailed(Error):
    pass
