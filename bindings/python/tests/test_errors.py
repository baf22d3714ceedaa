"""What is refused, and how it is told: in the words of Python, with causes."""

import re
import warnings
from pathlib import Path

import gdsync
import numpy
import pytest
from gdsync import _gdsync

REPOSITORY = Path(__file__).resolve().parents[3]
# Texts that name these concern what Python has no calls for: datagrams, DC, queue pairs of kernels, tasks of Rust, queues without a
# completion channel, and teams of another transport.
WITHOUT_CALLS = {
    "WorkRequest.to", "WorkRequest.to_target", "DeviceQp.detach_device", "Runtime.enter", "CompletionQueueConfig.channel", "TeamConfig.queue_pair",
    "ConnectOptions.max_reads", "TeamConfig.connect",
}


def texts_of_errors():
    """Yields the texts of the library's error types, as their source has them."""
    for crate in ["gdsync", "gdsync-notify", "gdsync-sys", "gdsync-auth", "gdsync-gdr"]:
        for file in (REPOSITORY / crate / "src").rglob("*.rs"):
            for attribute in re.findall(r'#\[error\(\s*"((?:[^"\\]|\\.)*)"', file.read_text()):
                yield file, attribute


def test_no_text_names_what_python_does_not_have():
    texts = list(texts_of_errors())
    assert len(texts) > 150 and sum("::" in text for _, text in texts) > 20
    for file, text in texts:
        told = _gdsync._of_python(text)
        assert "::" not in told and "panicked" not in told, (file, told)
        for name in re.findall(r"\b[A-Z]\w+\.\w+", told):
            found = gdsync
            for part in name.split("."):
                found = getattr(found, part, None)
            assert found or name in WITHOUT_CALLS, (file, told)


def test_texts_of_the_module_name_no_types_of_rust():
    for file in (REPOSITORY / "bindings/python/src").glob("*.rs"):
        if file.name == "words.rs":
            continue
        code = re.sub(r"//[^\n]*", "", file.read_text())
        for text in re.findall(r'"((?:[^"\\]|\\.)*)"', code):
            assert not re.search(r"::|Option|\bVec\b|Some\(|\bu(?:8|16|32|64|size)\b", text), (file, text)


def test_arrays_of_objects_are_refused(pd):
    for array in [numpy.array([None]), numpy.zeros(2, dtype=[("a", "i4"), ("b", "O")])]:
        with pytest.raises(gdsync.InvalidArgument, match="references to Python objects.*another dtype"):
            pd.register(array)
    assert len(pd.register(numpy.zeros(2, dtype=[("O", "i4")]))) == 8
    with pytest.raises(gdsync.InvalidArgument, match="does not export its memory") as told:
        pd.register(numpy.zeros(2, dtype="M8[s]"))
    assert isinstance(told.value.__cause__, BufferError)


def test_a_batch_prints_its_calls(pd, pair):
    region, batch = pd.allocate(16), gdsync.Stream().batch(timeout=0.05)
    address = region.address
    batch.send(pair[0], gdsync.WorkRequest.send(region[:8]))
    batch.wait(pair[0].send_cq)
    batch.wait_value(region.word32(4), 7, "and")
    batch.write_value(region.word64(8), 1)
    batch.barrier()
    lines = str(batch).splitlines()
    assert re.fullmatch(r"send\(queue pair 0x[0-9a-f]+, send of 8 bytes\)", lines[0]) and lines[1] == "wait(queue of 128 entries)"
    assert lines[2:] == [f'wait_value(word32 at {address + 4:#x}, 7, "and")', f"write_value(word64 at {address + 8:#x}, 1)", "barrier()"]
    assert len(batch) == 5 and repr(batch) == "<gdsync.Batch of 5 operations>"
    assert repr(gdsync.WorkRequest.nop(wr_id=3)) == "<gdsync.WorkRequest.nop of 0 bytes, wr_id 3>"
    with batch:
        pair[1].post_recv(region[:8])
    assert (str(batch), len(batch)) == ("", 0)


def test_a_batch_of_a_team_prints_its_calls():
    def rank(team):
        segment, batch = team.allocate(64, 4), gdsync.Stream().batch()
        batch.write(segment[:8], 0, 8)
        batch.write_notify(segment[:8], 0, 8, 1, 2)
        batch.notify(segment, 0, 3)
        batch.read(segment[:4], 0)
        batch.fetch_add(segment[:8], 0, 16, add=2)
        batch.compare_swap(segment[:8], 0, 16, compare=2, swap=3)
        batch.wait_writes(segment, 0)
        batch.wait_notification(segment, 1)
        text = str(batch)
        batch.post()
        team.flush(30)
        return text.splitlines()

    assert gdsync.run_ranks(1, rank) == [[
        "write(8 bytes, rank=0, offset=8)",
        "write_notify(8 bytes, rank=0, offset=8, id=1, value=2)",
        "notify(rank=0, id=3, value=1)",
        "read(4 bytes, rank=0, offset=0)",
        "fetch_add(rank=0, offset=16, add=2)",
        "compare_swap(rank=0, offset=16, compare=2, swap=3)",
        "wait_writes(rank=0)",
        "wait_notification(id=1)",
    ]]


def test_a_batch_that_is_dropped_unposted_warns(pd, collect):
    word, stream = pd.allocate(4).word32(0), gdsync.Stream()

    def made():
        batch = stream.batch()
        batch.write_value(word, 1)
        return batch

    with pytest.warns(ResourceWarning, match="batch of 1 operations is dropped unposted.*call post"):
        made()
        collect()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made().post()
        with made():
            pass
        with pytest.raises(KeyError), made():
            raise KeyError
        collect()


def test_a_warning_leaves_the_exception_of_the_block(pd):
    word, stream = pd.allocate(4).word32(0), gdsync.Stream()

    def fails():
        stream.batch().write_value(word, 1 / 0)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ZeroDivisionError):
            fails()


def test_the_exception_of_a_function_is_the_cause_of_the_streams_failure(pd):
    word, stream = pd.allocate(4).word32(0), gdsync.Stream()
    batch = stream.batch()
    batch.write_value(word, 1)
    stream.launch(lambda: {}["missing"])
    for call in [lambda: stream.synchronize(30), batch.post, lambda: stream.launch(print)]:
        with pytest.raises(gdsync.StreamFailed, match="function given to launch.. has raised KeyError") as told:
            call()
        cause = told.value.__cause__
        assert isinstance(cause, KeyError) and cause.args == ("missing",)
        assert cause.__traceback__.tb_frame.f_code.co_name == "<lambda>"
    batch.__exit__(KeyError)


def test_ranks_raise_the_first_exception_that_no_other_rank_has_caused():
    def rank(team):
        segment = team.allocate(8, 1)
        if team.rank == 2:
            raise LookupError("of rank 2")
        segment.wait(0, 30)

    with pytest.raises(LookupError, match="of rank 2") as told:
        gdsync.run_ranks(3, rank)
    assert getattr(told.value, "__notes__", ["raised by rank 2 of 3"]) == ["raised by rank 2 of 3"]
