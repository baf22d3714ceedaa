"""Streams, batches, queue pairs, persistent requests and triggers, on software streams."""

import threading

import gdsync
import numpy
import pytest


def test_a_send_in_the_order_of_a_stream(pd, pair):
    left, right = pair
    data, found = numpy.zeros(8, dtype="u1"), []
    source, target = pd.register(data), pd.allocate(8)
    stream = gdsync.Stream()
    right.post_recv(target[:], wr_id=5)
    stream.launch(lambda: data.fill(9))
    with stream.batch() as b:
        b.send(left, gdsync.WorkRequest.send(source[:], wr_id=6))
        b.wait(right.recv_cq)
    stream.launch(lambda: found.append(target.read()))
    stream.synchronize(30)
    assert found == [bytes([9] * 8)]
    assert b.posted[1] == 1 and len(b) == 0 and "posted" in repr(b)
    received, sent = right.recv_cq.wait(30), left.send_cq.wait(30)
    assert (received.wr_id, received.kind, received.nbytes, received.error) == (5, "receive", 8, None)
    assert (sent.wr_id, sent.kind) == (6, "send")


def test_reads_writes_and_atomics_by_the_cpu(pd, pair):
    left, right = pair
    here, there = pd.allocate(32), pd.allocate(32)
    remote = gdsync.RemoteMemory(str(there.remote))
    there.write(0, b"far away")
    make = gdsync.WorkRequest
    left.post_send(make.read(here[:8], remote=remote[:8]))
    read = left.send_cq.wait(30)
    assert (read.kind, read.nbytes) == ("read", 8)
    left.post_send(make.write(here[:8], remote=remote[8:16], signaled=False))
    left.post_send(make.fetch_add(here[16:24], remote=remote[16:24], add=3))
    left.post_send(make.compare_swap(here[24:32], remote=remote[16:24], compare=3, swap=8, wr_id=4))
    kinds = [left.send_cq.wait(30) for _ in range(2)]
    assert [one.kind for one in kinds] == ["fetch_add", "compare_swap"]
    assert there.read(0, 16) == b"far awayfar away"
    assert (there.word64(16).load(), here.word64(24).load()) == (8, 3)
    assert left.send_cq.poll() is None


def test_a_request_that_fails_says_why(pd, pair):
    left, _ = pair
    region = pd.allocate(8)
    wrong = gdsync.RemoteMemory(str(region.remote).rsplit(":", 1)[0] + ":ffffff00")
    left.post_send(gdsync.WorkRequest.write(region[:], remote=wrong))
    assert "remote access error" in left.send_cq.wait(30).error
    assert "remote access error" in left.failure and "failed" in repr(left)
    with pytest.raises(gdsync.ConnectionFailed):
        left.post_send(gdsync.WorkRequest.nop())


def test_what_a_queue_pair_refuses(pd, pair):
    left, _ = pair
    region, other = pd.allocate(8), gdsync.ProtectionDomain().allocate(8)
    with pytest.raises(gdsync.InvalidArgument, match="domain"):
        left.post_send(gdsync.WorkRequest.send(other[:]))
    with pytest.raises(gdsync.InvalidArgument):
        left.post_send(gdsync.WorkRequest.fetch_add(region[:4], remote=region.remote, add=1))
    with pytest.raises(gdsync.ConnectionFailed):
        gdsync.QueuePair(pd).post_send(gdsync.WorkRequest.nop())
    with pytest.raises(gdsync.InvalidArgument):
        left.connect("nonsense")
    with pytest.raises(gdsync.InvalidArgument):
        gdsync.RemoteMemory("nonsense")
    full = gdsync.QueuePair(pd, recv_depth=1)
    with pytest.raises(gdsync.WouldBlock):
        for _ in range(1000):
            full.post_recv(region[:])


def test_words_order_streams_and_the_cpu(pd):
    words = pd.allocate(16)
    go, done = words.word32(0), words.word64(8)
    stream = gdsync.Stream()
    with stream.batch() as b:
        b.wait_value(go, 1)
        b.barrier()
        b.write_value(done, 1 << 33)
    assert (done.load(), stream.outstanding) == (0, 1)
    assert "1 submissions" in repr(stream) and stream.oldest_wait
    with pytest.raises(gdsync.TimedOut, match="wait"):
        stream.synchronize(0.05)
    go.store(1)
    stream.synchronize(30)
    assert done.load() == 1 << 33
    with pytest.raises(gdsync.InvalidArgument, match="condition"):
        stream.batch().wait_value(go, 1, "ge")
    with pytest.raises(gdsync.InvalidArgument, match="32 bits"):
        stream.batch().write_value(go, 1 << 32)


def test_an_exception_in_the_block_drops_the_batch(pd, pair):
    left, _ = pair
    region, stream = pd.allocate(8), gdsync.Stream()
    with pytest.raises(KeyError):
        with stream.batch() as b:
            b.send(left, gdsync.WorkRequest.send(region[:]))
            raise KeyError
    assert (len(b), b.posted, stream.outstanding) == (0, None, 0)


def test_a_batch_that_does_not_fit_stays(pd):
    word, stream = pd.allocate(4).word32(0), gdsync.Stream()
    with pytest.raises(gdsync.TimedOut, match="room"):
        for _ in range(5000):
            batch = stream.batch(merged=False, timeout=0.05)
            batch.wait_value(word, 1)
            batch.post()
    assert len(batch) == 1
    word.store(1)
    stream.synchronize(30)
    assert batch.post() == (1, 1)
    stream.synchronize(30)


def test_a_kernel_that_raises_fails_its_stream():
    stream = gdsync.Stream()
    stream.launch(lambda: {}["missing key"])
    with pytest.raises(gdsync.StreamFailed, match="missing key"):
        stream.synchronize(30)
    with pytest.raises(gdsync.StreamFailed):
        stream.launch(print)


@pytest.mark.parametrize("stream", ["cuda", object(), 1.5, -1])
def test_what_is_no_stream_is_refused(stream):
    with pytest.raises(gdsync.InvalidArgument, match="no CUDA stream"):
        gdsync.Stream(stream)


def test_a_cuda_stream_needs_a_driver():
    class OfTorch:
        cuda_stream = 0

    class OfCudaPython:
        def __cuda_stream__(self):
            return (0, 0)

    for stream in [OfTorch(), OfCudaPython(), 0]:
        try:
            assert gdsync.Stream(stream).cuda_stream == 0
        except (gdsync.Unsupported, gdsync.DeviceError) as error:
            assert "driver" in str(error).lower() or "cu" in str(error)


def test_software_streams_have_no_graphs(pd):
    with pytest.raises(gdsync.Unsupported, match="CUDA"):
        gdsync.capture(gdsync.Stream(), iter([]))


def test_persistent_requests(pd, pair):
    left, right = pair
    region = pd.allocate(64)
    region.write(0, b"persistent")
    send = gdsync.Persistent.send(left, region[:10])
    receive = gdsync.Persistent.receive(right, region[32:42])
    write = gdsync.Persistent.write(left, region[:4], remote=region.remote[60:64])
    stream = gdsync.Stream()
    for _ in range(3):
        gdsync.start_all([receive, send, write], stream)
        gdsync.wait_all([receive, send, write], stream)
    stream.synchronize(30)
    # The stream waited for the starts before the last.
    assert receive.complete(30).nbytes == 10
    assert send.complete(30).error is None and write.complete(30).error is None
    assert region.read(32, 10) == b"persistent" and region.read(60, 4) == b"pers"
    assert not send.is_active and "send" in repr(send)
    with pytest.raises(gdsync.InvalidArgument, match="not active"):
        send.complete(0.1)
    with pytest.raises(gdsync.InvalidArgument, match="twice"):
        gdsync.start_all([send, send], stream)


def test_a_trigger_releases_sends(pd):
    trigger = gdsync.Trigger(pd)
    left, right = gdsync.QueuePair(pd, trigger=trigger), gdsync.QueuePair(pd)
    left.connect(right.endpoint)
    right.connect(left.endpoint)
    region, stream = pd.allocate(16), gdsync.Stream()
    region.write(0, b"trigger!")
    right.post_recv(region[8:])
    with stream.batch() as b:
        b.send(left, gdsync.WorkRequest.send(region[:8]))
        b.wait(right.recv_cq)
    stream.synchronize(30)
    assert region.read(8) == b"trigger!" and trigger.address and gdsync.Trigger.word_of(1) != 1


def test_streams_work_in_several_threads(pd):
    words = pd.allocate(8 * 4)
    streams = [gdsync.Stream() for _ in range(4)]

    def post(which):
        word = words.word64(8 * which)
        for value in range(1, 101):
            with streams[which].batch() as b:
                b.write_value(word, value)
        streams[which].synchronize(30)

    threads = [threading.Thread(target=post, args=(which,)) for which in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [words.word64(8 * which).load() for which in range(4)] == [100] * 4


def test_devices():
    assert gdsync.devices()[0].startswith("softhca")
    device = gdsync.Device()
    assert device.is_software and device.name in repr(device)
    assert "registrations" in repr(gdsync.ProtectionDomain(device))
    with pytest.raises(gdsync.Unsupported):
        gdsync.Device("mlx5_77")
