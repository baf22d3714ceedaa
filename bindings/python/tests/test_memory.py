"""Tensors as they are: registration without a copy, lifetimes, and refusals."""

import array
import mmap
import weakref

import gdsync
import numpy
import pytest


class Exporter:
    """A tensor of another library: an array that only DLPack exposes."""

    def __init__(self, array, device=None):
        self.array, self.device = array, device

    def __dlpack_device__(self):
        return self.device or self.array.__dlpack_device__()

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)


class CudaArray:
    """An object that claims to be memory of a GPU."""

    def __init__(self, **interface):
        self.__cuda_array_interface__ = {"shape": (4,), "typestr": "<f4", "data": (4096, False), "version": 3} | interface


@pytest.mark.parametrize(
    "make",
    [
        lambda: numpy.arange(16, dtype="u1"),
        lambda: numpy.zeros((4, 4), dtype="u1"),
        lambda: bytearray(16),
        lambda: array.array("B", bytes(16)),
        lambda: mmap.mmap(-1, 16),
        lambda: memoryview(bytearray(32))[8:24],
        lambda: Exporter(numpy.zeros(16, dtype="u1")),
        lambda: Exporter(numpy.zeros((2, 8), dtype="u1")[1:, :].repeat(2, axis=0)),
    ],
)
def test_whatever_has_memory_is_registered_without_a_copy(pd, make):
    tensor = make()
    region = pd.register(tensor)
    assert (len(region), region.tensor is tensor) == (16, True)
    region.write(3, b"abc")
    shown = tensor.array if isinstance(tensor, Exporter) else tensor
    assert bytes(memoryview(shown).cast("B"))[3:6] == b"abc"
    assert "16 bytes" in repr(region)


def test_a_dtype_without_a_buffer_goes_by_dlpack_or_is_refused_with_the_reason(pd):
    times = numpy.zeros(4, dtype="datetime64[s]")
    with pytest.raises((gdsync.Error, BufferError)):
        pd.register(times)
    assert len(pd.register(times.view("u1"))) == 32


@pytest.mark.parametrize(
    "tensor, error, reason",
    [
        (numpy.zeros((4, 4))[:, 1], gdsync.InvalidArgument, "not contiguous"),
        (numpy.asfortranarray(numpy.zeros((4, 3))), gdsync.InvalidArgument, "not contiguous"),
        (Exporter(numpy.zeros((4, 4))[:, 1]), gdsync.InvalidArgument, "not contiguous"),
        (CudaArray(shape=(2, 2), strides=(4, 8)), gdsync.InvalidArgument, "not contiguous"),
        (b"read-only", gdsync.InvalidArgument, "read-only"),
        (numpy.broadcast_to(numpy.zeros(1), (1,)), gdsync.InvalidArgument, "read-only"),
        (CudaArray(data=(4096, True)), gdsync.InvalidArgument, "read-only"),
        (numpy.zeros(0), gdsync.InvalidArgument, "no bytes"),
        (CudaArray(shape=(0,)), gdsync.InvalidArgument, "no bytes"),
        (CudaArray(mask=object()), gdsync.InvalidArgument, "mask"),
        (Exporter(numpy.zeros(4), (8, 0)), gdsync.Unsupported, "Metal"),
        (Exporter(numpy.zeros(4), (10, 0)), gdsync.Unsupported, "ROCm"),
        (object(), gdsync.InvalidArgument, "DLPack"),
        ([1, 2, 3], gdsync.InvalidArgument, "DLPack"),
    ],
)
def test_what_cannot_be_registered_is_refused_with_the_reason(pd, tensor, error, reason):
    with pytest.raises(error, match=reason):
        pd.register(tensor)


def test_a_consumed_capsule_is_refused():
    capsule = numpy.zeros(4).__dlpack__()
    numpy.from_dlpack(Handed(capsule))
    with pytest.raises(gdsync.InvalidArgument, match="consumed"):
        gdsync._gdsync._dlpack(capsule)


class Handed:
    def __init__(self, capsule):
        self.capsule = capsule

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, **options):
        return self.capsule


def test_an_argument_error_is_a_value_error_too(pd):
    with pytest.raises(ValueError):
        pd.register(b"read-only")


def test_a_buffer_stays_exported_while_it_is_registered(pd, collect):
    buffer = bytearray(16)
    region = pd.register(buffer)
    with pytest.raises(BufferError):
        buffer.append(1)
    del region
    collect()
    buffer.append(1)


def test_a_tensor_is_kept_until_the_card_has_done_with_it(pd, pair, collect):
    left, right = pair
    tensor = numpy.full(64, 7, dtype="u1")
    gone = weakref.ref(tensor)
    target = pd.allocate(64)
    source = pd.register(tensor)
    gate = pd.allocate(4).word32(0)
    stream = gdsync.Stream()
    right.post_recv(target[:], wr_id=1)
    with stream.batch() as b:
        b.wait_value(gate, 1)
        b.send(left, gdsync.WorkRequest.send(source[:], wr_id=2))
        b.wait(left.send_cq)
    del source, tensor
    collect()
    assert gone() is not None, "the card has not sent it"
    gate.store(1)
    assert right.recv_cq.wait(30).nbytes == 64
    assert left.send_cq.wait(30).wr_id == 2
    stream.synchronize(30)
    assert target.read() == bytes([7]) * 64
    collect()
    assert gone() is None


def test_to_register_again_takes_no_registration(pd):
    tensor = numpy.zeros(4096, dtype="u1")
    first = pd.register(tensor)
    again = pd.register(tensor)
    part = pd.register(tensor[100:200])
    assert pd.registrations == (1, 2, 1)
    assert str(first.remote) == str(again.remote) and len(part) == 100
    del first, again, part
    assert pd.registrations[0] == 0


def test_allocated_memory_is_shown_without_a_copy(pd):
    region = pd.allocate(32)
    shown = numpy.asarray(region)
    shown[4:8] = [1, 2, 3, 4]
    assert region.read(4, 4) == b"\1\2\3\4"
    del region
    assert shown[5] == 2, "the array keeps the memory"
    assert not hasattr(pd.allocate(8), "__cuda_array_interface__")


def test_ranges_outside_are_refused(pd):
    region = pd.allocate(16)
    assert len(region[8:]) == 8 and len(region[-4:]) == 4 and len(region[16:]) == 0
    with pytest.raises(gdsync.InvalidArgument, match="step"):
        region[::2]
    for bad, told in [
        (lambda: region[:100], r"\[0:100\] is not within the 16 bytes .*: give bounds from 0 to 16"),
        (lambda: region[-17:], r"\[-17:16\]"),
        (lambda: region[4:2], "the lower one first"),
        (lambda: region.remote[8:17], r"\[8:17\] is not within the 16 bytes"),
    ]:
        with pytest.raises(gdsync.InvalidArgument, match=told):
            bad()
    for bad in [lambda: region.read(10, 7), lambda: region.write(16, b"1"), lambda: region.word64(12)]:
        with pytest.raises(gdsync.InvalidArgument, match="1[0-9]"):
            bad()


def test_words(pd):
    word, wide = pd.allocate(8).word32(4), pd.allocate(8).word64(0)
    word.store(7)
    wide.store(1 << 40)
    assert (word.load(), wide.load()) == (7, 1 << 40)
    with pytest.raises(gdsync.InvalidArgument, match="32 bits"):
        word.store(1 << 32)


def test_memory_of_a_gpu_needs_a_driver(pd):
    try:
        pd.allocate(16, gpu=0)
    except gdsync.Unsupported as error:
        assert "driver" in str(error).lower()
    except gdsync.DeviceError as error:
        assert "GPU" in str(error) or "CUDA" in str(error)


def test_ten_thousand_registrations_leave_nothing(pd, collect):
    tensors = [numpy.zeros(4096, dtype="u1") for _ in range(10)]

    def register(times):
        for count in range(times):
            region = pd.register(tensors[count % 10])
            del region
        collect()

    register(1000)
    before = resident()
    register(10_000)
    assert pd.registrations[0] == 0
    assert resident() - before < 2 << 20
    references = [weakref.ref(tensor) for tensor in tensors]
    tensors.clear()
    collect()
    assert not any(reference() is not None for reference in references)


def resident():
    """Returns the resident bytes of this process."""
    with open("/proc/self/statm") as numbers:
        return int(numbers.read().split()[1]) * mmap.PAGESIZE
