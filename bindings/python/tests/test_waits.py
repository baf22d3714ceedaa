"""Signals end waits, the GIL is free meanwhile, and asyncio awaits them."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time

import gdsync
import pytest

BEGIN = """
import gdsync, signal, sys
# Programs that a shell starts in the background ignore the signal, and so do those that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
pd = gdsync.ProtectionDomain()
stream, word = gdsync.Stream(), pd.allocate(4).word32(0)
with stream.batch() as b:
    b.wait_value(word, 1)
queue = gdsync.CompletionQueue(pd)
team = gdsync.Team(gdsync.Bootstrap.threads(1)[0])
segment = team.allocate(8, 1)
two = gdsync.Bootstrap.threads(2, None)
def fill():
    while True:
        batch = stream.batch(merged=False, timeout=None)
        batch.wait_value(word, 1)
        batch.post()
print("waiting", flush=True)
try:
    {wait}
except KeyboardInterrupt:
    word.store(1)
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize(
    "wait",
    ["stream.synchronize()", "queue.wait()", "segment.wait()", "gdsync.Team(two[0])", "two[0].barrier()", "fill()"],
)
def test_ctrl_c_ends_every_wait(wait):
    program = subprocess.Popen([sys.executable, "-c", BEGIN.format(wait=wait)], stdout=subprocess.PIPE, text=True)
    assert program.stdout.readline() == "waiting\n"
    time.sleep(0.3)
    program.send_signal(signal.SIGINT)
    rest, _ = program.communicate(timeout=60)
    assert (rest, program.returncode) == ("interrupted\n", 0)


def test_other_threads_run_while_one_waits(pd):
    word, stream = pd.allocate(4).word32(0), gdsync.Stream()
    with stream.batch() as b:
        b.wait_value(word, 1)
    # This thread ends the wait, for which it needs the GIL.
    threading.Timer(0.2, word.store, (1,)).start()
    stream.synchronize(30)


def test_a_timeout_that_is_none_is_refused(pd):
    for seconds in [-1.0, float("nan")]:
        with pytest.raises(gdsync.InvalidArgument, match="timeout"):
            gdsync.Stream().synchronize(seconds)
    with pytest.raises(gdsync.TimedOut):
        gdsync.CompletionQueue(pd).wait(0)
    with pytest.raises(TimeoutError):
        gdsync.CompletionQueue(pd).wait(0.01)


def test_asyncio_awaits_streams_queues_and_notifications(pd, pair):
    left, right = pair

    def rank(team):
        async def main():
            segment, region = team.allocate(8, 2), pd.allocate(16)
            stream, word = gdsync.Stream(), region.word32(8)
            with stream.batch() as b:
                b.wait_value(word, 1)
            right.post_recv(region[:8], wr_id=3)
            waits = [
                asyncio.ensure_future(wait)
                for wait in [
                    stream.synchronize_async(),
                    right.recv_cq.wait_async(30),
                    segment.wait_async(range(0, 2), 30),
                    team.wait(segment, 1, 30),
                ]
            ]
            await asyncio.sleep(0.1)
            assert not any(wait.done() for wait in waits)
            word.store(1)
            left.post_send(gdsync.WorkRequest.send(region[:8]))
            team.queue().notify(segment, 0, id=1)
            done = await asyncio.gather(*waits)
            assert done[0] is None and done[1].wr_id == 3 and done[2:] == [1, 1]
            with pytest.raises(gdsync.TimedOut, match="0.05"):
                await right.recv_cq.wait_async(0.05)
            cancelled = asyncio.ensure_future(right.recv_cq.wait_async())
            await asyncio.sleep(0.02)
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled

        asyncio.run(main())

    gdsync.run_ranks(1, rank)


def test_many_waits_share_a_thread_and_a_descriptor():
    def rank(team):
        async def main():
            segment = team.allocate(8, 200)
            before = threading.active_count()
            waits = [asyncio.ensure_future(segment.wait_async(id, 60)) for id in range(200)]
            await asyncio.sleep(0.05)
            assert threading.active_count() == before, "no thread of the loop's executor"
            for id in [199, *range(199)]:
                team.queue().notify(segment, 0, id=id)
                assert await waits[id] == id

        for _ in range(2):
            asyncio.run(main())
        team.flush(30)

    gdsync.run_ranks(1, rank)


def test_barriers_and_flushes_are_awaited():
    def rank(team):
        async def main():
            segment = team.allocate(8, 1)
            assert await team.barrier_async() is None
            team.queue().write_notify(segment[:8], 1 - team.rank)
            assert await team.flush_async(30) is None
            assert await segment.wait_async(0, 30) == 0
            await asyncio.gather(team.barrier_async(), team.flush_async())

        asyncio.run(main())
        with pytest.raises(gdsync.InvalidArgument, match="timeout"):
            team.flush_async(-1)
        return team.rank

    assert gdsync.run_ranks(2, rank) == [0, 1]


def test_awaited_failures_have_their_causes(pd):
    stream, word = gdsync.Stream(), pd.allocate(4).word32(0)

    async def main():
        with stream.batch() as b:
            b.wait_value(word, 1)
        with pytest.raises(gdsync.TimedOut, match=r"the stream took longer than 0.02 s \(wait until .* geq 0x1, for "):
            await stream.synchronize_async(0.02)
        word.store(1)
        stream.launch(lambda: {}["missing"])
        with pytest.raises(gdsync.StreamFailed) as told:
            await stream.synchronize_async(30)
        assert isinstance(told.value.__cause__, KeyError)

    asyncio.run(main())


def says(wait, match):
    """Waits until the error of the wait, which times out, says so."""
    deadline = time.monotonic() + 60
    while True:
        with pytest.raises(gdsync.TimedOut) as told:
            wait()
        if re.search(match, str(told.value)):
            return str(told.value)
        assert time.monotonic() < deadline, told.value


def test_a_time_out_says_its_cause(pd, pair):
    left, right = pair
    region, stream = pd.allocate(8), gdsync.Stream()
    with stream.batch() as b:
        b.send(left, gdsync.WorkRequest.send(region[:]))
        b.wait(left.send_cq)
    rnr = r"queue pair 0x[0-9a-f]+ waits for a receive of the peer \(RNR\), resent \d+ times, peer queue pair 0x"
    said = says(lambda: stream.synchronize(0.05), rnr)
    assert re.match(r"the stream took longer than 0.05 s \(wait for completion 0 of queue 0x.*, for [\d.]+ m?s: ", said)
    says(lambda: asyncio.run(asyncio.wait_for(stream.synchronize_async(0.05), 60)), rnr)
    # Who polls does not wait for what others know.
    with pytest.raises(gdsync.TimedOut, match="took longer than 0 s: give"):
        stream.synchronize(0)
    says(lambda: right.recv_cq.wait(0.02), r"queue pair 0x[0-9a-f]+, peer queue pair 0x[0-9a-f]+ .*, which waits for a receive")
    right.post_recv(region[:])
    stream.synchronize(30)


def test_a_rank_that_has_set_no_notification_is_named():
    def rank(team):
        segment = team.allocate(8, 4)
        segment.expect_from(range(3), 1 - team.rank)
        said = says(lambda: segment.wait(2, 0.02), "has not set notification 2; queue pair 0x")
        team.barrier()
        return said.split(" (")[1].split(" has")[0]

    assert gdsync.run_ranks(2, rank) == ["rank 1", "rank 0"]


FLUSH = """
import asyncio, gdsync
def rank(team):
    segment = team.allocate(16, 0)
    if team.rank == 0:
        for flush in [team.queue().flush, team.flush, lambda timeout: asyncio.run(team.flush_async(timeout))]:
            team.queue().fetch_add(segment[8:16], 1, 0, add=1)
            try:
                flush(timeout=0.05)
            except gdsync.TimedOut as error:
                print(error)
            team.flush(60)
    team.barrier()
gdsync.run_ranks(2, rank)
"""


def test_a_flush_names_the_rank_that_holds_it_up():
    # Each answer is on its way for long, but comes before eight time-outs of 67 ms have passed.
    env = {**os.environ, "SOFTHCA_FAULTS": "delay=400ms kind=atomic-response"}
    said = subprocess.run([sys.executable, "-c", FLUSH], env=env, capture_output=True, text=True, timeout=120, check=True)
    expected = r"the flush took longer than 0.05 s \(requests to rank 1 have not completed; queue pair 0x[0-9a-f]+ .*\): "
    lines = said.stdout.splitlines()
    assert len(lines) == 3 and all(re.match(expected, line) for line in lines), said.stdout


def test_a_canceled_wait_loses_no_completion(pd, pair):
    left, right = pair
    region = pd.allocate(8)

    async def main():
        for pause in [0, 0.001, 0.05] * 3:
            right.post_recv(region[:], wr_id=5)
            wait = asyncio.ensure_future(right.recv_cq.wait_async())
            await asyncio.sleep(0)
            left.post_send(gdsync.WorkRequest.send(region[:]))
            # The loop does not run meanwhile, and the thread may take the completion.
            time.sleep(pause)
            wait.cancel()
            try:
                done = await wait
            except asyncio.CancelledError:
                done = right.recv_cq.wait(30)
            assert done.wr_id == 5
            assert left.send_cq.wait(30).error is None

    asyncio.run(main())


def test_awaits_of_a_dead_rank_end_by_name():
    def rank(team):
        segment = team.allocate(8, 1)
        team.barrier()
        if team.rank == 1:
            return None

        async def main():
            with pytest.raises(gdsync.PeerDead) as told:
                await segment.wait_async(0, 60)
            return told.value.rank

        return asyncio.run(main())

    assert gdsync.run_ranks(2, rank) == [1, None]
