"""Reductions of tensors, in the order of ranks: the ranks that reduce the same numbers have the same bits."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from .._errors import InvalidArgument


_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_COMPLEX = (torch.complex64, torch.complex128)

_STEPS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "SUM": lambda to, of: to.add_(of),
    "AVG": lambda to, of: to.add_(of),
    "PRODUCT": lambda to, of: to.mul_(of),
    "MIN": lambda to, of: torch.minimum(to, of, out=to),
    "MAX": lambda to, of: torch.maximum(to, of, out=to),
    "BAND": lambda to, of: to.bitwise_and_(of),
    "BOR": lambda to, of: to.bitwise_or_(of),
    "BXOR": lambda to, of: to.bitwise_xor_(of),
}


def operation_of(options: Any, dtype: torch.dtype) -> str:
    """Returns the operation's name. Raises ``InvalidArgument`` if the numbers do not have it."""
    given = getattr(options, "reduceOp", ReduceOp.SUM)
    # A `ReduceOp`, or its `RedOpType`.
    kind = getattr(given, "op", given)
    name = str(getattr(kind, "name", kind)).rsplit(".", 1)[-1]
    if name not in _STEPS:
        raise InvalidArgument(f"the backend gdsync has no reduction {name}: it has {', '.join(_STEPS)}")
    if dtype in _FLOATS and name not in ("BAND", "BOR", "BXOR"):
        return name
    if dtype in _COMPLEX and name in ("SUM", "AVG", "PRODUCT"):
        return name
    if dtype in _INTEGERS or (name != "AVG" and (dtype == torch.bool or dtype in _SIGNED)):
        return name
    raise InvalidArgument(
        f"the backend gdsync has no {name} of {dtype}: it has SUM, AVG, PRODUCT, MIN and MAX of float16, bfloat16, float32, float64 and "
        "integers (AVG of uint8 and signed ones), BAND, BOR and BXOR of integers, all but AVG of bool, and SUM, AVG and PRODUCT of "
        "complex numbers"
    )


def reduce(parts: Tensor, into: Tensor, name: str) -> None:
    """Reduces the rows of ``parts``, which it may change, into a tensor."""
    flipped: Optional[int] = None
    if parts.dtype in _SIGNED:
        # torch adds no unsigned numbers of more than 8 bits. They compare as signed ones with their highest bit flipped.
        parts = parts.view(_SIGNED[parts.dtype])
        if name in ("MIN", "MAX"):
            flipped = torch.iinfo(parts.dtype).min
            parts = parts ^ flipped
    total = parts[0]
    for part in parts[1:]:
        _STEPS[name](total, part)
    if flipped is not None:
        total = total ^ flipped
    if name == "AVG":
        total = torch.div(total, parts.shape[0], rounding_mode="trunc" if parts.dtype in _INTEGERS else None)
    into.copy_(total.view(into.dtype))
