#!/usr/bin/env python3
"""Whether cuMemcpy2DAsync copies rows that lie in two allocations of GPU memory, or in two pinned ranges of the host.

It does not: CUDA_ERROR_INVALID_VALUE (1), whatever lies between them. So gdsync makes one copy of rows of one allocation and
one pinned range only (gdsync/src/cuda/peer_copies.rs). Needs a GPU and its driver; takes a second.
"""
import ctypes as C

ROW = 65536
HOST, DEVICE = 1, 2
cuda, libc = C.CDLL("libcuda.so.1"), C.CDLL("libc.so.6")
libc.mmap.restype = C.c_void_p


class Copy2D(C.Structure):
    _fields_ = [
        (side + name, kind)
        for side in ("src", "dst")
        for name, kind in [
            ("XInBytes", C.c_size_t),
            ("Y", C.c_size_t),
            ("MemoryType", C.c_uint),
            ("Host", C.c_void_p),
            ("Device", C.c_uint64),
            ("Array", C.c_void_p),
            ("Pitch", C.c_size_t),
        ]
    ] + [("WidthInBytes", C.c_size_t), ("Height", C.c_size_t)]


def check(result, call):
    if result:
        raise SystemExit(f"{call}: {result}")


def device_memory(size):
    address = C.c_uint64()
    check(cuda.cuMemAlloc_v2(C.byref(address), C.c_size_t(size)), "cuMemAlloc")
    return address.value


def host_memory(size):
    # Readable and writable, private and anonymous.
    return libc.mmap(None, C.c_size_t(size), 3, 0x22, -1, C.c_long(0))


def pin(address, size):
    check(cuda.cuMemHostRegister_v2(C.c_void_p(address), C.c_size_t(size), 0), "cuMemHostRegister")
    return address


def copy(what, stream, device, host, is_read):
    """Two rows at these addresses of the GPU, and at these of the host."""
    described = Copy2D(WidthInBytes=ROW, Height=2)
    for side, rows, kind in [
        ("src" if is_read else "dst", device, DEVICE),
        ("dst" if is_read else "src", host, HOST),
    ]:
        setattr(described, side + "MemoryType", kind)
        setattr(described, side + ("Device" if kind == DEVICE else "Host"), rows[0])
        setattr(described, side + "Pitch", rows[1] - rows[0])
    result = cuda.cuMemcpy2DAsync_v2(C.byref(described), stream)
    print(what, "read" if is_read else "written", "result", result, "end", cuda.cuStreamSynchronize(stream))


device, context, stream = C.c_int(), C.c_void_p(), C.c_void_p()
check(cuda.cuInit(0), "cuInit")
check(cuda.cuDeviceGet(C.byref(device), 0), "cuDeviceGet")
check(cuda.cuDevicePrimaryCtxRetain(C.byref(context), device), "cuDevicePrimaryCtxRetain")
check(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent")
check(cuda.cuStreamCreate(C.byref(stream), 1), "cuStreamCreate")

one = pin(host_memory(1 << 20), 1 << 20)
for size in (ROW, 2 << 20, 3 << 20):
    rows = sorted(device_memory(size) for _ in range(2))
    for is_read in (True, False):
        copy(f"two allocations of {size} bytes", stream, rows, [one, one + ROW], is_read)
two = host_memory(8 << 20)
ranges = [pin(two, 2 << 20), pin(two + (4 << 20), 2 << 20)]
memory = device_memory(2 * ROW)
for is_read in (True, False):
    copy("two pinned ranges", stream, [memory, memory + ROW], ranges, is_read)
    copy("one of each", stream, [memory, memory + ROW], [one, one + ROW], is_read)
