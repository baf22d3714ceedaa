"""Messages and collectives of arrays on teams."""

import gdsync
import numpy
import pytest

SIZES = [1, 2, 3, 5]


def test_arrays_are_sent_in_order_and_in_parts():
    def rank(team):
        with team:
            for count in [0, 1, 10, 5000, 40_000]:
                if team.rank == 0:
                    team.send(numpy.arange(count, dtype="i4"), 1, 30)
                    team.send(b"end", 1, 30)
                elif team.rank == 1:
                    found, end = numpy.zeros(count, dtype="i4"), bytearray(3)
                    team.recv(found, 0, 30)
                    team.recv(end, 0, 30)
                    assert (found == numpy.arange(count)).all() and end == b"end"
        return team.rank

    assert gdsync.run_ranks(3, rank) == [0, 1, 2]


def test_both_ranks_may_send_first_what_fits_and_to_themselves():
    def rank(team):
        with team:
            other, found = 1 - team.rank, bytearray(2)
            team.send(bytes([team.rank, 9]), other, 30)
            team.recv(found, other, 30)
            own = bytearray(1)
            team.send(b"x", team.rank, 30)
            team.recv(own, team.rank, 30)
            return found[0], bytes(own)

    assert gdsync.run_ranks(2, rank) == [(1, b"x"), (0, b"x")]


@pytest.mark.parametrize("size", SIZES)
def test_broadcast_gather_and_scatter(size):
    def rank(team):
        with team:
            for root in range(size):
                data = numpy.full(20_000, root + 1.0) if team.rank == root else numpy.zeros(20_000)
                team.broadcast(data, root, 30)
                assert (data == root + 1).all()
                # Rank n has n items.
                own = numpy.full(team.rank, 10 * root + team.rank, dtype="i2")
                counts = list(range(size))
                into = numpy.zeros(sum(counts), dtype="i2") if team.rank == root else None
                team.gather(own, into, root, counts=counts, timeout=30)
                if team.rank == root:
                    assert into.tolist() == [10 * root + one for one in range(size) for _ in range(one)]
                back = numpy.zeros(team.rank, dtype="i2")
                team.scatter(into, back, root, counts=counts if team.rank == root else None, timeout=30)
                assert (back == own).all()
                even = numpy.zeros(2 * size, dtype="i8") if team.rank == root else None
                team.gather(numpy.full(2, team.rank), even, root, timeout=30)
                assert team.rank != root or even.tolist() == [one for one in range(size) for _ in range(2)]

    gdsync.run_ranks(size, rank)


@pytest.mark.parametrize("size", SIZES)
def test_all_to_all_of_uneven_counts(size):
    def count(source, target):
        return (3 * source + target) % 4 * 5000

    def rank(team):
        with team:
            for step in range(3):
                sent = [count(team.rank, other) for other in range(size)]
                received = [count(other, team.rank) for other in range(size)]
                array = numpy.concatenate([numpy.full(n, step + 10 * team.rank + other, "i4") for other, n in enumerate(sent)])
                into = numpy.zeros(sum(received), dtype="i4")
                team.all_to_all(array, into, send_counts=sent, recv_counts=received, timeout=60)
                expected = [numpy.full(n, step + 10 * other + team.rank, "i4") for other, n in enumerate(received)]
                assert (into == numpy.concatenate(expected)).all()
            even = numpy.zeros(size, dtype="u1")
            team.all_to_all(numpy.arange(size, dtype="u1") + 10 * team.rank, even, timeout=30)
            assert even.tolist() == [10 * other + team.rank for other in range(size)]

    gdsync.run_ranks(size, rank)


@pytest.mark.parametrize("size", SIZES)
def test_all_reduce(size):
    def rank(team):
        with team:
            for kind in ["f4", "f8", "i1", "u2", "i8"]:
                for count in [1, 5, 30_000]:
                    for _ in range(3):
                        array = numpy.arange(count).astype(kind) % 7 + team.rank
                        team.all_reduce(array, timeout=30)
                        expected = sum(numpy.arange(count).astype(kind) % 7 + one for one in range(size))
                        assert array.dtype == kind and (array == expected).all()
            least = numpy.array([team.rank + 3, -team.rank], dtype="i4")
            team.all_reduce(least, "min", 30)
            assert least.tolist() == [3, 1 - size]
            team.all_reduce(numpy.zeros(0), timeout=30)

    gdsync.run_ranks(size, rank)


def test_what_messages_refuse():
    def rank(team):
        with team:
            array = numpy.zeros(4, dtype="i4")
            for bad, told in [
                (lambda: team.send(array, 2), "rank 2 is none of the 2 ranks"),
                (lambda: team.send(array[::2], 0), "contiguous"),
                (lambda: team.recv(b"1234", 0), "read-only"),
                (lambda: team.broadcast(array, 5), "rank 5, the root"),
                (lambda: team.all_to_all(array[:3], array), "3 items does not divide among 2 ranks: give counts"),
                (lambda: team.all_to_all(array, array, send_counts=[3, 2]), r"\[3, 2\] do not divide `array` of 4 items"),
                (lambda: team.all_reduce(numpy.zeros(2, dtype="c8")), "no numbers of type complex64"),
                (lambda: team.all_reduce(array, "average"), "average"),
            ]:
                with pytest.raises(gdsync.InvalidArgument, match=told):
                    bad()
            with pytest.raises(gdsync.TimedOut, match="message from rank .* longer than 0.05 s"):
                team.recv(array, 1 - team.rank, 0.05)
            team.barrier()
            team.send(array[:2], 1 - team.rank)
            team.send(array, 1 - team.rank)
            with pytest.raises(gdsync.InvalidArgument, match="has sent 8 bytes, and 16 are received"):
                team.recv(array, 1 - team.rank, 30)
            team.recv(array, 1 - team.rank, 30)

    gdsync.run_ranks(2, rank)
    without = gdsync.Team(gdsync.Bootstrap.threads(1)[0], messages=0)
    with pytest.raises(gdsync.InvalidArgument, match="messages="):
        without.send(b"1", 0)


def test_a_message_of_a_dead_rank_ends_by_name():
    def rank(team):
        team.barrier()
        if team.rank == 1:
            return None
        with pytest.raises(gdsync.PeerDead) as told:
            team.recv(bytearray(1), 1, 60)
        return told.value.rank

    assert gdsync.run_ranks(2, rank) == [1, None]


def test_the_others_go_on_without_a_dead_rank():
    def rank(team):
        array = numpy.full(4, team.rank, dtype="i4")
        team.all_reduce(array, timeout=30)
        assert array.tolist() == [3] * 4
        # Until all have looked at their result.
        team.barrier()
        if team.rank == 2:
            return None
        with pytest.raises(gdsync.PeerDead):
            team.all_reduce(array, timeout=60)
        assert team.shrink() == [2]
        with team:
            array[:] = team.rank + 1
            team.all_reduce(array, timeout=30)
            into = numpy.zeros(8, dtype="i4")
            team.all_to_all(array, into[:4], timeout=30)
            team.broadcast(into, 1, 30)
        return array.tolist()

    assert gdsync.run_ranks(3, rank) == [[3] * 4, [3] * 4, None]


def test_a_block_that_raises_does_not_wait_for_the_others():
    def rank(team):
        with team:
            if team.rank == 0:
                raise LookupError("of rank 0")
            team.recv(bytearray(1), 0, 60)

    with pytest.raises(LookupError, match="of rank 0"):
        gdsync.run_ranks(2, rank)


def test_writes_and_sends_carry_numbers(pd, pair):
    left, right = pair
    source, target = pd.allocate(8), pd.allocate(8)
    source.write(0, b"12345678")
    right.post_recv(target[:], wr_id=1)
    left.post_send(gdsync.WorkRequest.write(source[:4], remote=target.remote, immediate=7))
    done = right.recv_cq.wait(30)
    assert (done.wr_id, done.immediate, target.read(0, 5)) == (1, 7, b"1234\0")
    right.post_recv(target[:], wr_id=2)
    left.post_send(gdsync.WorkRequest.send(source[:], immediate=1 << 31))
    done = right.recv_cq.wait(30)
    assert (done.wr_id, done.immediate, target.read()) == (2, 1 << 31, b"12345678")
