"""Teams: notified writes, reads, atomics and collectives among ranks; ranks that die."""

import asyncio
import os
import subprocess
import sys
import weakref

import gdsync
import numpy
import pytest


def test_registered_tensors_are_written_and_notified():
    def rank(team):
        tensor = numpy.zeros(64, dtype="u1")
        segment = team.register(tensor, notifications=8)
        stream, other = gdsync.Stream(), 1 - team.rank
        stream.launch(lambda: tensor[:8].fill(team.rank + 1))
        with stream.batch() as b:
            b.write_notify(segment[0:8], rank=other, offset=32, id=3)
            b.wait_notification(segment, 3)
        stream.synchronize(30)
        assert tensor[32:40].tolist() == [other + 1] * 8 and segment.tensor is tensor
        assert "64 bytes and 8 notifications" in repr(segment) and "rank" in repr(team)
        team.flush(30)
        team.barrier()
        return int(tensor[32])

    assert gdsync.run_ranks(2, rank) == [2, 1]


def test_the_cpu_writes_reads_and_counts():
    def rank(team):
        segment, queue = team.allocate(64, 4), team.queue()
        other = (team.rank + 1) % team.size
        segment.write(0, bytes([65 + team.rank]) * 8)
        team.barrier()
        queue.write_notify(segment[:8], other, offset=8, id=1, value=7)
        assert segment.wait(range(0, 4), 30) == 1
        assert (segment.reset(1), segment.reset(1)) == (7, 0)
        queue.read(segment[16:24], other)
        queue.fetch_add(segment[24:32], 0, 56, add=2)
        queue.flush(timeout=30)
        assert segment.read(16, 8) == bytes([65 + other]) * 8
        team.barrier()
        if team.rank == 0:
            assert segment.word64(56).load() == 2 * team.size
        team.barrier()
        queue.compare_swap(segment[32:40], 0, 56, compare=2 * team.size, swap=1)
        queue.notify(segment, other, id=2)
        assert segment.wait(2, 30) == 2
        queue.flush()
        team.barrier()
        return segment.word64(32).load()

    assert sorted(gdsync.run_ranks(3, rank)) == [1, 1, 6]


def test_streams_read_and_count():
    def rank(team):
        segment, stream, other = team.allocate(64, 1), gdsync.Stream(), 1 - team.rank
        segment.write(0, bytes([team.rank + 1]) * 8)
        team.barrier()
        with stream.batch() as b:
            b.read(segment[8:16], other)
            b.fetch_add(segment[16:24], 0, 48, add=5)
            b.compare_swap(segment[24:32], 1, 48, compare=99, swap=1)
            b.wait_writes(segment, 0)
            b.wait_writes(segment, 1)
        stream.synchronize(30)
        assert segment.read(8, 8) == bytes([other + 1]) * 8
        team.flush(30)
        team.barrier()
        return segment.word64(48).load()

    assert gdsync.run_ranks(2, rank) == [10, 0]


def test_slices_of_other_memory_name_the_segment_that_is_written():
    def rank(team):
        segment = team.allocate(8, 1)
        own = gdsync.ProtectionDomain().allocate(8)
        with pytest.raises(gdsync.InvalidArgument, match="to=SEGMENT"):
            team.queue().write(own[:], 0)
        with pytest.raises(gdsync.InvalidArgument, match="domain"):
            team.queue().write(own[:], 0, to=segment)
        team.barrier()

    gdsync.run_ranks(1, rank)


def test_what_a_team_refuses():
    def rank(team):
        segment, stream = team.allocate(8, 2), gdsync.Stream()
        batch = stream.batch()
        for bad, what in [
            (lambda: batch.write(segment[:], 7), "rank 7"),
            (lambda: batch.write(segment[:], 0, 4), "8 bytes from offset 4"),
            (lambda: batch.notify(segment, 0, 5), "notification 5"),
            (lambda: batch.notify(segment, 0, 1, 0), "value 0"),
            (lambda: batch.wait_notification(segment, 2), "notification 2"),
            (lambda: segment.wait(range(1, 9), 0), "notification 8"),
            (lambda: segment.wait("all"), "notifications"),
            (lambda: segment.wait(0, -1), "timeout"),
            (lambda: team.queue(3), "queue 3"),
            (lambda: segment.read(4, 8), "outside the 8 bytes"),
            (lambda: gdsync.plan(team, "reduce"), "collective"),
            (lambda: gdsync.plan(team, "reduce_scatter", 8, element="f16"), "element"),
        ]:
            with pytest.raises(gdsync.InvalidArgument, match=what):
                bad()
        with pytest.raises(gdsync.TimedOut, match="0 to 2"):
            segment.wait(timeout=0.05)

    gdsync.run_ranks(1, rank)
    one = gdsync.Bootstrap.threads(1)[0]
    gdsync.Team(one)
    for bad in [lambda: gdsync.Team(one), one.barrier, lambda: gdsync.Bootstrap.join(2, 2, "job")]:
        with pytest.raises(gdsync.InvalidArgument):
            bad()
    with pytest.raises(gdsync.InvalidArgument, match="each"):
        gdsync.Team(gdsync.Bootstrap.threads(1)[0], connections="all")
    with pytest.raises(gdsync.InvalidArgument, match="99999 is no port"):
        gdsync.Bootstrap.join(0, 2, "localhost:99999", timeout=0.1)
    with pytest.raises(gdsync.TimedOut, match=r"ranks \[1\] did not arrive within 100ms"):
        gdsync.Bootstrap.join(0, 2, f"job-{os.getpid()}", timeout=0.1)


def test_a_registered_tensor_is_released_with_its_segment(collect):
    def rank(team):
        tensor = numpy.zeros(16, dtype="u1")
        segment = team.register(tensor, 1)
        team.queue().write_notify(segment[:8], 0, offset=8)
        segment.wait(0, 30)
        team.flush(30)
        team.barrier()
        return weakref.ref(tensor)

    gone = gdsync.run_ranks(1, rank)[0]
    collect()
    assert gone() is None


@pytest.mark.parametrize("kind, ranks", [("all_gather", 3), ("all_to_all", 3), ("broadcast", 3), ("reduce_scatter", 3), ("all_reduce", 3), ("barrier", 2)])
def test_collectives(kind, ranks):
    def rank(team):
        plan = gdsync.plan(team, kind, 0 if kind == "barrier" else 16, root=1, element="i32")
        data, stream = numpy.asarray(plan.segment).view("i4"), gdsync.Stream()
        results = []
        for step in range(5):
            (start, end), (first, last) = plan.input(), plan.output()
            own = data[start // 4 : end // 4]
            own[:] = 100 * step + 10 * team.rank + numpy.arange(len(own)) // 4
            assert plan.post(stream) > 0
            stream.synchronize(30)
            plan.check()
            results.append(data[first // 4 : last // 4 : 4].tolist())
        assert plan.round == 5 and kind.replace("_", "-") in repr(plan)
        team.flush(30)
        team.barrier()
        return results

    found = gdsync.run_ranks(ranks, rank)
    for step in range(5):
        base = 100 * step
        for one in range(ranks):
            expected = {
                "all_gather": [base + 10 * other for other in range(ranks)],
                "all_to_all": [base + 10 * other + one for other in range(ranks)],
                "broadcast": [base + 10],
                "reduce_scatter": [sum(base + 10 * other + one for other in range(ranks))],
                "all_reduce": [sum(base + 10 * other for other in range(ranks))],
                "barrier": [],
            }[kind]
            assert found[one][step] == expected


FOUR_RANKS = """
import gdsync, numpy
team = gdsync.Team.from_env()
tensor = numpy.zeros(team.size, dtype="i4")
segment = team.register(tensor, notifications=team.size)
tensor[team.rank] = team.rank + 1
stream = gdsync.Stream()
with stream.batch() as b:
    own = slice(4 * team.rank, 4 * team.rank + 4)
    for rank in range(team.size):
        if rank != team.rank:
            b.write_notify(segment[own], rank, offset=own.start, id=team.rank)
    for rank in range(team.size):
        if rank != team.rank:
            b.wait_notification(segment, rank)
stream.synchronize(60)
assert tensor.tolist() == [1, 2, 3, 4], tensor
team.flush(60)
team.barrier()
"""

DIES = """
import gdsync, os, time
team = gdsync.Team.from_env()
segment = team.allocate(8, 4)
team.barrier()
if team.rank == 1:
    os._exit(0)
try:
    segment.wait(timeout=60)
except gdsync.PeerDead as error:
    assert error.rank == 1 and error.cause and "rank 1 is dead" in str(error)
    assert team.dead[0][0] == 1 and "1 dead" in repr(team)
    assert team.shrink() == [1] and team.members == [0]
else:
    raise SystemExit("no rank was found dead")
"""


def start(program, ranks, name):
    """Ranks as torchrun starts them."""
    common = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1"}
    common |= {"MASTER_PORT": "29511", "TORCHELASTIC_RUN_ID": f"{name}-{os.getpid()}"}
    each = [os.environ | common | {"RANK": str(rank)} for rank in range(ranks)]
    processes = [subprocess.Popen([sys.executable, "-c", program], env=environment) for environment in each]
    return [process.wait(timeout=120) for process in processes]


def test_four_ranks_under_torchruns_environment():
    assert start(FOUR_RANKS, 4, "four") == [0] * 4


def test_a_rank_that_dies_ends_the_waits_for_it_by_name():
    assert start(DIES, 2, "dies") == [0, 0]


def test_without_a_launcher_the_error_names_what_to_do(monkeypatch):
    for name in list(os.environ):
        if name.endswith("RANK") or name == "SLURM_PROCID":
            monkeypatch.delenv(name)
    with pytest.raises(gdsync.InvalidArgument, match="torchrun"):
        gdsync.Team.from_env()


def test_bootstraps_exchange_bytes():
    from concurrent.futures import ThreadPoolExecutor

    ranks = gdsync.Bootstrap.threads(3)
    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(lambda one: one.all_gather(bytes([one.rank])), ranks))
    assert found == [[b"\0", b"\1", b"\2"]] * 3 and "rank 1 of 3" in repr(ranks[1])


def test_a_stream_stops_at_the_wait_for_a_dead_rank():
    def rank(team):
        segment = team.allocate(8, 2)
        segment.expect_from(range(2), 1)
        team.barrier()
        if team.rank == 1:
            return None
        stops, goes_on = gdsync.Stream(), gdsync.Stream(stop_at_death=False)
        ran = []
        for notification, stream in enumerate([stops, goes_on]):
            with stream.batch() as b:
                b.wait_notification(segment, notification)
            stream.launch(lambda stream=stream: ran.append(stream))
        goes_on.synchronize(60)
        with pytest.raises(gdsync.PeerDead, match="rank 1 is dead.*go_on") as told:
            stops.synchronize(60)
        with pytest.raises(gdsync.PeerDead):
            segment.check(1)
        assert ran == [goes_on]
        with pytest.raises(gdsync.PeerDead):
            asyncio.run(asyncio.wait_for(stops.synchronize_async(60), 60))
        stops.go_on()
        stops.synchronize(60)
        assert ran == [goes_on, stops]
        return told.value.rank

    assert gdsync.run_ranks(2, rank) == [1, None]
