"""Signals end waits, the GIL is free meanwhile, and asyncio awaits them."""

import asyncio
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
