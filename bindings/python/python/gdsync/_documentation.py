"""The docstrings of the type stub, for what is written in Python: the module has embedded them."""

from __future__ import annotations

from typing import Any, TypeVar

from ._gdsync import _docstrings

T = TypeVar("T")

DOCSTRINGS: dict[str, str] = dict(_docstrings)


def documented(thing: T) -> T:
    """Gives a function, or a class and its methods, their docstrings of the stub. Tracebacks name it as programs do."""
    named: Any = thing
    named.__module__ = __package__
    named.__doc__ = DOCSTRINGS[named.__name__]
    for name, member in vars(named).items():
        if not name.startswith("_"):
            getattr(member, "__func__", member).__doc__ = DOCSTRINGS[f"{named.__name__}.{name}"]
    return thing
