"""The memory of Python objects for registration: its address, and its owner."""

from __future__ import annotations

import ctypes
import re
from typing import Any, Optional

from ._errors import InvalidArgument, Unsupported
from ._gdsync import _dlpack

# DLPack's device types.
_CPU, _CUDA, _CUDA_HOST, _CUDA_MANAGED = 1, 2, 3, 13
_OTHERS = {4: "OpenCL", 7: "Vulkan", 8: "Metal", 10: "ROCm", 11: "pinned ROCm", 14: "oneAPI", 15: "WebGPU"}

# Address, bytes, the GPU (None: the host, -1: ask the driver), and the owner.
Memory = tuple[int, int, Optional[int], object]


def describe(tensor: Any) -> Memory:
    """Returns the memory of an array, a tensor or a buffer, or raises the reason why it cannot be registered."""
    kind, index = _device(tensor)
    interface = getattr(tensor, "__cuda_array_interface__", None)
    if interface is not None:
        return _from_cuda_array(tensor, interface, index)
    if kind == _CPU:
        try:
            view = memoryview(tensor)
        except (TypeError, ValueError, BufferError):
            view = None
        if view is not None:
            return _from_buffer(tensor, view)
    if hasattr(tensor, "__dlpack__"):
        return _from_dlpack(tensor, kind)
    raise InvalidArgument(
        f"{_name(tensor)} has no memory that can be registered: pass an array or a tensor with DLPack, "
        "__cuda_array_interface__ or the buffer protocol"
    )


def _device(tensor: Any) -> tuple[int, int]:
    ask = getattr(tensor, "__dlpack_device__", None)
    if ask is None:
        return _CPU, -1
    kind, index = ask()
    kind = int(kind)
    if kind not in (_CPU, _CUDA, _CUDA_HOST, _CUDA_MANAGED):
        name = _OTHERS.get(kind, "unknown")
        raise Unsupported(
            f"{_name(tensor)} is on a device of DLPack's type {kind} ({name}): "
            "copy it to the host or to a CUDA GPU first"
        )
    return kind, int(index)


def _from_cuda_array(tensor: Any, interface: dict[str, Any], index: int) -> Memory:
    address, readonly = interface["data"]
    if interface.get("mask") is not None:
        raise InvalidArgument(f"{_name(tensor)} has a mask: register its data")
    item = int(interface["typestr"][2:])
    shape = tuple(interface["shape"])
    strides = interface.get("strides")
    if strides is not None and not _is_contiguous(shape, tuple(strides), item):
        raise _not_contiguous(tensor, shape, strides)
    count = 1
    for extent in shape:
        count *= extent
    return _checked(tensor, address, count * item, bool(readonly), index, tensor)


def _from_buffer(tensor: Any, view: memoryview) -> Memory:
    if not view.c_contiguous:
        raise _not_contiguous(tensor, view.shape, view.strides)
    if view.readonly:
        raise _read_only(tensor)
    if view.nbytes == 0:
        raise _empty(tensor)
    # `O`: pointers to objects, outside of the names of fields.
    if "O" in re.sub(":[^:]*:", "", view.format):
        raise InvalidArgument(
            f"{_name(tensor)} of format {view.format!r} holds references to Python objects, which mean nothing to "
            "another process: register numbers, such as an array of another dtype"
        )
    # Holds the buffer's export, so that a bytearray cannot be resized or a mapping closed meanwhile.
    held = (ctypes.c_char * view.nbytes).from_buffer(view)
    return ctypes.addressof(held), view.nbytes, None, held


def _from_dlpack(tensor: Any, kind: int) -> Memory:
    # -1: the exporter adds no synchronization; batches order the card's accesses.
    stream = {"stream": -1} if kind in (_CUDA, _CUDA_MANAGED) else {}
    try:
        try:
            capsule = tensor.__dlpack__(max_version=(1, 1), **stream)
        except TypeError:
            capsule = tensor.__dlpack__(**stream)
    except BufferError as error:
        raise InvalidArgument(f"{_name(tensor)} does not export its memory: {error}") from error
    address, shape, strides, item, readonly, kind, index = _dlpack(capsule)
    if strides is not None and not _is_contiguous(shape, strides, 1):
        raise _not_contiguous(tensor, shape, strides)
    count = item
    for extent in shape:
        count *= extent
    gpu = index if kind in (_CUDA, _CUDA_MANAGED) else None
    # The capsule keeps the memory and returns it when released, because no consumer has renamed it.
    return _checked(tensor, address, count, readonly, gpu, (tensor, capsule))


def _checked(tensor: Any, address: int, size: int, readonly: bool, gpu: Optional[int], owner: object) -> Memory:
    if readonly:
        raise _read_only(tensor)
    if size == 0:
        raise _empty(tensor)
    return address, size, gpu, owner


def _is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...], item: int) -> bool:
    """Returns true if the last index runs fastest, without gaps. Strides are in units of ``item``."""
    expected = item
    for extent, stride in zip(reversed(shape), reversed(strides)):
        if extent != 1 and stride != expected:
            return 0 in shape
        expected *= extent
    return True


def _not_contiguous(tensor: Any, shape: Any, strides: Any) -> InvalidArgument:
    return InvalidArgument(
        f"{_name(tensor)} of shape {tuple(shape)} with strides {tuple(strides)} is not contiguous: "
        "register a contiguous tensor, and copy this one into it"
    )


def _read_only(tensor: Any) -> InvalidArgument:
    return InvalidArgument(
        f"{_name(tensor)} is read-only, and a card may write what is registered: register writable memory"
    )


def _empty(tensor: Any) -> InvalidArgument:
    return InvalidArgument(f"{_name(tensor)} has no bytes: there is nothing to register")


def _name(tensor: Any) -> str:
    kind = type(tensor)
    return f"the {kind.__module__}.{kind.__qualname__}" if kind.__module__ != "builtins" else f"the {kind.__qualname__}"
