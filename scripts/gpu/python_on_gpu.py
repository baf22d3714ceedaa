"""The parts of `scripts/gpu/python` that are no examples. Argument: costs, graph or tests."""

import gc
import statistics
import sys
import time
import weakref

import cupy
import gdsync
import torch

ROUNDS = 2000
LAUNCHES = 10_000


def alone():
    """A team of one rank, its domain, and a stream of torch."""
    pd = gdsync.ProtectionDomain()
    team = gdsync.Team(gdsync.Bootstrap.threads(1)[0], pd, queues=2)
    own = torch.cuda.Stream()
    return pd, team, own, gdsync.Stream(own)


def median(measure, settle):
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        measure()
        times.append(time.perf_counter() - began)
        settle()
    return statistics.median(times) * 1e6


def costs():
    pd, team, own, stream = alone()
    word = pd.allocate(4).word32(0)
    segment = team.allocate(64, 2)
    event = torch.cuda.Event()
    event.record()

    def words():
        with stream.batch() as b:
            for value in range(8):
                b.write_value(word, value)

    def notified():
        with stream.batch() as b:
            for id in range(2):
                b.write_notify(segment[:8], 0, 8, id)
            for id in range(2):
                b.wait_notification(segment, id)

    def settle():
        stream.synchronize(30)
        team.flush(30)

    def wait_events():
        for _ in range(8):
            own.wait_event(event)

    for one in (words, notified, wait_events):
        one()
        settle()
    # Alternating, so that both see the same machine.
    rust_words, rust_notified = (1e6 * one for one in gdsync._gdsync._time_batches(stream, word, segment, ROUNDS))
    python_words, python_notified = median(words, settle), median(notified, settle)
    events = median(wait_events, own.synchronize)
    print("what the CPU takes to make and post a batch, medians of", ROUNDS)
    print("batch                                           Rust µs  Python µs  above Rust µs")
    for name, rust, python in [
        ("8 writes of a word", rust_words, python_words),
        ("2 notified writes, 2 waits for notifications", rust_notified, python_notified),
    ]:
        print(f"{name:46} {rust:8.2f} {python:10.2f} {python - rust:14.2f}")
    print(f"8 times torch.cuda.Stream.wait_event: {events:.2f} µs")


def graph():
    """Kernels of torch around a send and its arrival: a graph, with fresh work for each launch."""
    pd, _, own, stream = alone()
    left, right = gdsync.QueuePair(pd), gdsync.QueuePair(pd)
    left.connect(right.endpoint)
    right.connect(left.endpoint)
    source = torch.zeros(1024, dtype=torch.int32, device="cuda")
    target, total = torch.zeros_like(source), torch.zeros(1024, dtype=torch.int64, device="cuda")
    out, into = pd.register(source), pd.register(target)

    def exchange():
        right.post_recv(into[:])
        batch = stream.batch()
        batch.send(left, gdsync.WorkRequest.send(out[:]))
        batch.wait(right.recv_cq)
        return batch

    def steps():
        source.add_(1)
        yield template
        total.add_(target)

    # Loads the kernels before anything waits.
    with torch.cuda.stream(own):
        source.add_(0)
        total.add_(target)
    torch.cuda.synchronize()
    template = exchange()
    with torch.cuda.stream(own):
        captured = gdsync.capture(stream, steps())
    print(repr(captured))

    def completed():
        """How many exchanges have arrived since the last call. Their places in the queues are free again."""
        arrived = 0
        for queue, receives in ((left.send_cq, False), (right.recv_cq, True)):
            while (done := queue.poll()) is not None:
                assert done.error is None, done.error
                arrived += receives
        return arrived

    began, arrived = time.perf_counter(), 0
    for launch in range(LAUNCHES):
        captured.launch(stream, template if launch == 0 else exchange())
        # The queues hold 128 requests each.
        while launch - arrived > 64:
            arrived += completed()
    stream.synchronize(60)
    seconds = time.perf_counter() - began
    assert (source == LAUNCHES).all() and (total == LAUNCHES * (LAUNCHES + 1) // 2).all(), (source[0], total[0])
    print(f"{LAUNCHES} launches, each message right: {seconds / LAUNCHES * 1e6:.1f} µs each")
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=own):
            source.add_(0)
            exchange().post()
    except (gdsync.Error, RuntimeError) as error:
        print(f"a post while torch captures: {type(error).__name__}: {error}")
    else:
        sys.exit("a post while torch captures was not refused")


def tests():
    """Registration and refusals that need a GPU."""
    pd, team, own, stream = alone()
    for tensor in (torch.arange(64, dtype=torch.uint8, device="cuda"), cupy.arange(64, dtype="u1")):
        region = pd.register(tensor)
        assert region.read() == bytes(range(64)) and region.tensor is tensor, region
        region.write(0, b"card")
        torch.cuda.synchronize()
        assert bytes(tensor[:4].tolist()) == b"card"
        print(repr(region))
    shown = torch.as_tensor(pd.allocate(16, gpu=0), device="cuda")
    shown.fill_(3)
    assert shown.sum().item() == 48
    for bad, reason in [
        (torch.zeros(8, 8, device="cuda")[:, 1], "not contiguous"),
        (cupy.zeros((8, 8))[:, 1], "not contiguous"),
        (torch.zeros(0, device="cuda"), "no bytes"),
        (torch.zeros(8, 8)[:, 1], "not contiguous"),
    ]:
        try:
            pd.register(bad)
        except gdsync.InvalidArgument as error:
            assert reason in str(error), error
            print(f"refused: {error}")
        else:
            sys.exit(f"{bad} was not refused")
    # A tensor of the host, which has no buffer: DLPack.
    host = torch.zeros(16, dtype=torch.uint8)
    pd.register(host).write(0, b"\1" * 16)
    assert host.sum().item() == 16
    for handle in (own, own.cuda_stream, cupy.cuda.ExternalStream(own.cuda_stream), torch.cuda.current_stream()):
        print(repr(gdsync.Stream(handle)))
    # Kept while the card may use it, and released afterwards.
    segment = team.allocate(1 << 20, 1, gpu=0)
    tensor = torch.full((1 << 20,), 7, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    gone, word = weakref.ref(tensor), pd.allocate(4).word32(0)
    region = pd.register(tensor)
    with stream.batch() as b:
        b.wait_value(word, 1)
        b.write_notify(region[:], 0, to=segment)
        b.wait_notification(segment, 0)
    del tensor, region
    gc.collect()
    assert gone() is not None
    word.store(1)
    stream.synchronize(30)
    team.flush(30)
    assert torch.as_tensor(segment, device="cuda").sum().item() == 7 << 20
    for _ in range(100):
        stream.synchronize(30)
        gc.collect()
        if gone() is None:
            break
        time.sleep(0.01)
    print("the tensor is released" if gone() is None else "the tensor is still kept")
    before = torch.cuda.mem_get_info()[0]
    block = torch.zeros(1 << 20, dtype=torch.uint8, device="cuda")
    for _ in range(10_000):
        pd.register(block)
    stream.synchronize(30)
    print(f"10,000 registrations of a tensor: {before - torch.cuda.mem_get_info()[0]} bytes of GPU memory more")
    torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    big = torch.zeros(64 << 20, dtype=torch.uint8, device="cuda")
    try:
        print(f"expandable segments work: {pd.register(big)!r}")
    except gdsync.Error as error:
        assert "expandable_segments:False" in str(error), error
        print(f"expandable segments: {error}")


{"costs": costs, "graph": graph, "tests": tests}[sys.argv[1]]()
