"""The docstrings of the type stub, for what is written in Python: the module has embedded them."""

from __future__ import annotations

from typing import Any, TypeVar

from . import _gdsync

T = TypeVar("T")

DOCSTRINGS: dict[str, str] = dict(_gdsync._docstrings)


def documented(thing: T) -> T:
    """Gives a class or a function its docstring of the stub."""
    named: Any = thing
    named.__doc__ = DOCSTRINGS[named.__name__]
    return thing
