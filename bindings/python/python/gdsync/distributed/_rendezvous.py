"""The ranks of a process group meet by torch's store, and become a team."""

from __future__ import annotations

import json
import os
import secrets
import socket
from pathlib import Path
from typing import Any, Optional

import torch

import gdsync

# The card of all ranks; without it, the software card.
DEVICE = "GDSYNC_TORCH_DEVICE"


def meet(store: Any, rank: int, size: int, timeout: float, bound: Optional[torch.device]) -> tuple[gdsync.Team, Optional[int]]:
    """Returns the team of a group, and this rank's GPU if each rank has one."""
    card, gpu = os.environ.get(DEVICE), _gpu(bound)
    store.set(f"rank{rank}", json.dumps([_host(), card, gpu]))
    ranks: list[list[Any]] = [json.loads(store.get(f"rank{other}")) for other in range(size)]
    for other, (_, of_other, _) in enumerate(ranks):
        if of_other != card:
            raise gdsync.InvalidArgument(
                f"rank {rank} has the card {card or 'softhca0'}, and rank {other} {of_other or 'softhca0'}: set {DEVICE} alike "
                "for all ranks"
            )
    if rank == 0:
        is_one_host = len({host for host, _, _ in ranks}) == 1
        address, key = (f"torch-{secrets.token_hex(16)}", None) if is_one_host else (_root(), secrets.token_hex(32))
        store.set("root", json.dumps([address, key]))
    address, key = json.loads(store.get("root"))
    bootstrap = gdsync.Bootstrap.join(rank, size, address, key=key.encode() if key else None, timeout=timeout)
    pd = gdsync.ProtectionDomain(gdsync.Device(card))
    have_gpus = all(of_other is not None for _, _, of_other in ranks)
    # Queues for messages, for the software stream, and for the GPU's stream.
    team = gdsync.Team(bootstrap, pd, queues=3 if have_gpus else 2, messages=0)
    return team, gpu if have_gpus else None


def _gpu(bound: Optional[torch.device]) -> Optional[int]:
    if not torch.cuda.is_available():
        return None
    if bound is not None and bound.index is not None:
        return int(bound.index)
    # Programs often choose their GPU only after this.
    return int(torch.cuda.current_device() or int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())


def _host() -> str:
    """A text that processes which may meet under a name of this host have in common."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{socket.gethostname()} {boot.read_text().strip() if boot.exists() else ''}"


def _root() -> str:
    """A port of this host, at the address by which it reaches the job's first host."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route:
        # Sends nothing.
        route.connect((os.environ.get("MASTER_ADDR") or socket.gethostname(), 9))
        host = route.getsockname()[0]
    with socket.socket() as probe:
        probe.bind((host, 0))
        return f"{host}:{probe.getsockname()[1]}"
