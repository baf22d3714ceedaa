"""A backend of ``torch.distributed``: ``torch.distributed.init_process_group("gdsync")``.

Each process group is a team. Tensors of the CPU are exchanged in the order of a software stream, tensors of a GPU in the order of
torch's streams. torch 2.15 and newer find the backend by its name. For older ones, a program imports this module first, or starts
as ``python -m gdsync.distributed PROGRAM``.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from ._group import Group
from ._rendezvous import meet

__all__ = ["Group", "register"]


def _create(options: Any, _of_backend: Any) -> Group:
    group = getattr(options, "process_group", None)
    bound = getattr(group, "bound_device_id", None)
    timeout = options.timeout.total_seconds()
    return Group(*meet(options.store, options.group_rank, options.group_size, timeout, bound), timeout)


def register() -> None:
    """Makes the backend known to torch. Importing this module does so."""
    if "GDSYNC" not in dist.Backend._plugins:
        dist.Backend.register_backend("gdsync", _create, extended_api=True, devices=["cpu", "cuda"])


register()
