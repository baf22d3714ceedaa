"""The exceptions of gdsync. Each has the library's text: the value, the limit and the remedy."""

from __future__ import annotations


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

    def __init__(self, text: str, rank: int = -1, cause: str = "") -> None:
        super().__init__(text)
        self.rank = rank
        self.cause = cause


class ConnectionFailed(Error, ConnectionError):
    """A connection has failed or cannot be established."""


class DeviceError(Error):
    """The card's libraries or the CUDA driver refuse."""


class StreamFailed(Error):
    """The stream has failed permanently."""
