"""What each rank of `test_torch.py` runs: `torch_ranks.py NAME...` are functions here."""

import os
import sys
import time
from datetime import timedelta

import gdsync
import pytest
import torch
import torch.distributed as dist
from gdsync.distributed import _rendezvous
from torch.distributed import ReduceOp
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
# Less and more than what travels at a time, and what does not divide among the ranks.
LENGTHS = [0, 1, 7, 1000, 200_003]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
SIGNED = [torch.int8, torch.int16, torch.int32, torch.int64]
UNSIGNED = [torch.uint8, torch.uint16, torch.uint32, torch.uint64]


def numbers(length, dtype=torch.float32, salt=0):
    """Small whole numbers of this rank."""
    return ((torch.arange(length) * 7 + 3 * RANK + salt) % 5).to(dtype)


def same(ours, theirs):
    for one, other in zip(ours, theirs):
        assert one.dtype == other.dtype and one.shape == other.shape
        # Not all comparisons have unsigned numbers.
        assert one.contiguous().view(torch.uint8).equal(other.contiguous().view(torch.uint8)), (one, other)


def as_gloo():
    """Every collective has gloo's results, in place of which it takes the same arguments."""
    gloo = dist.new_group(backend="gloo")
    for length in LENGTHS:
        for dtype in (torch.float32, torch.int64, torch.uint8):
            for operation in ("SUM", "PRODUCT", "MIN", "MAX"):
                reduced = []
                for group in (None, gloo):
                    both = [numbers(length, dtype) for _ in range(2)]
                    dist.all_reduce(both[0], getattr(ReduceOp, operation), group)
                    dist.reduce(both[1], 1, getattr(ReduceOp, operation), group)
                    reduced.append(both if RANK == 1 else both[:1])
                same(*reduced)
        moved = []
        for group in (None, gloo):
            data = numbers(length)
            dist.broadcast(data, SIZE - 1, group)
            rows = [torch.empty(length) for _ in range(SIZE)]
            dist.all_gather(rows, numbers(length, salt=1), group)
            whole = torch.empty(SIZE * length)
            dist.all_gather_into_tensor(whole, numbers(length, salt=2), group)
            at_root = [torch.empty(length) for _ in range(SIZE)] if RANK == 1 else None
            dist.gather(numbers(length, salt=3), at_root, 1, group)
            part = torch.empty(length)
            dist.scatter(part, [numbers(length, salt=rank) for rank in range(SIZE)] if RANK == 0 else None, 0, group)
            mine = torch.empty(length)
            dist.reduce_scatter_tensor(mine, numbers(SIZE * length), group=group)
            even = torch.empty(SIZE * length)
            dist.all_to_all_single(even, numbers(SIZE * length), group=group)
            sent = [(RANK + 2 * rank) % 4 * length for rank in range(SIZE)]
            received = [(rank + 2 * RANK) % 4 * length for rank in range(SIZE)]
            uneven = torch.empty(sum(received), 2)
            dist.all_to_all_single(uneven, numbers(2 * sum(sent)).view(-1, 2), received, sent, group=group)
            moved.append([data, *rows, whole, *(at_root or []), part, mine, even, uneven])
        same(*moved)
        # gloo has no such calls.
        lists = [torch.empty(rank + length) for rank in range(SIZE)]
        dist.all_to_all(lists, [numbers(RANK + length, salt=rank) for rank in range(SIZE)])
        assert all(((torch.arange(rank + length) * 7 + 3 * rank + RANK) % 5).equal(one.long()) for rank, one in enumerate(lists))
        mine = torch.empty(length)
        dist.reduce_scatter(mine, [numbers(length, salt=rank) for rank in range(SIZE)])
        same([mine], [sum((torch.arange(length) * 7 + 3 * rank + RANK) % 5 for rank in range(SIZE)).float()])
    single = torch.empty(SIZE)
    dist.all_gather_into_tensor(single, torch.tensor(float(RANK)))
    assert single.tolist() == list(range(SIZE))
    objects = [None] * SIZE
    dist.all_gather_object(objects, {"rank": RANK})
    assert objects == [{"rank": rank} for rank in range(SIZE)]
    given = [["from 0"] if RANK == 0 else None]
    dist.broadcast_object_list(given, 0)
    assert given == [["from 0"]]


def dtypes():
    """Reductions of all types, against plain arithmetic."""
    for dtype in (*FLOATS, *SIGNED, *UNSIGNED):
        ranks = [((torch.arange(50) * 7 + 3 * rank) % 5 + (250 if dtype in UNSIGNED and rank == 0 else 0)) for rank in range(SIZE)]
        expected = {"SUM": sum(ranks), "MIN": torch.stack(ranks).amin(0), "MAX": torch.stack(ranks).amax(0)}
        if dtype not in FLOATS:
            expected["BXOR"] = torch.stack(ranks)[0] ^ torch.stack(ranks)[1] ^ torch.stack(ranks)[2]
        if dtype not in UNSIGNED[1:]:
            averaged = torch.stack([one.to(dtype) for one in ranks])
            total = (averaged[0] + averaged[1]) + averaged[2]
            expected["AVG"] = torch.div(total, SIZE, rounding_mode=None if dtype in FLOATS else "trunc")
        for name, numbers_of_all in expected.items():
            own = ranks[RANK].to(dtype, copy=True)
            dist.all_reduce(own, getattr(ReduceOp, name))
            assert own.to(torch.int64).equal(numbers_of_all.to(dtype).to(torch.int64)), (dtype, name, own)
    # The highest bit is no sign.
    large = torch.tensor([1 << 63 if RANK == 0 else RANK], dtype=torch.uint64)
    dist.all_reduce(large, ReduceOp.MAX)
    assert large.tolist() == [1 << 63]
    flags = torch.tensor([RANK == 1, False, True])
    dist.all_reduce(flags, ReduceOp.MAX)
    assert flags.tolist() == [True, False, True]
    waves = torch.tensor([1 + 2j]) * (RANK + 1)
    dist.all_reduce(waves)
    assert waves.tolist() == [6 + 12j]
    for tensor, operation, told in [
        (torch.ones(2), ReduceOp.BAND, "no BAND of torch.float32"),
        (torch.ones(2, dtype=torch.uint32), ReduceOp.AVG, "no AVG of torch.uint32"),
        (torch.ones(2).to(torch.float8_e4m3fn), ReduceOp.SUM, "no SUM of torch.float8_e4m3fn"),
        (torch.ones(2).to_sparse(), ReduceOp.SUM, "dense tensors"),
    ]:
        with pytest.raises(gdsync.InvalidArgument, match=told):
            dist.all_reduce(tensor, operation)
    with pytest.raises(gdsync.InvalidArgument, match="4 numbers does not divide among 3 ranks"):
        dist.all_gather_into_tensor(torch.empty(4), torch.empty(1))
    with pytest.raises(gdsync.InvalidArgument, match="split sizes"):
        dist.all_to_all_single(torch.empty(4), torch.empty(4), [1, 2, 3], [1, 1, 2])
    # The ranks are still together.
    after = torch.ones(3)
    dist.all_reduce(after)
    assert after.tolist() == [3.0] * 3


def asynchronous():
    """Operations are under way together, in their order; futures have results; messages pass each other."""
    works, tensors = [], [torch.full((50_000,), float(RANK + one)) for one in range(8)]
    for tensor in tensors:
        works.append(dist.all_reduce(tensor, async_op=True))
    for one, (work, tensor) in enumerate(zip(works, tensors)):
        work.wait()
        assert work.is_completed() and tensor.unique().tolist() == [sum(range(SIZE)) + SIZE * one]
    future = dist.all_reduce(torch.full((4,), 1.0), async_op=True).get_future()
    assert future.then(lambda done: done.value()[0] * 2).wait().tolist() == [2.0 * SIZE] * 4

    # A send of more than a pair's slots, behind which collectives go on.
    ahead, behind = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    sent, arrived = torch.full((300_000,), float(RANK)), torch.empty(300_000)
    sending = dist.isend(sent, ahead)
    dist.barrier()
    dist.recv(arrived, behind)
    sending.wait()
    assert arrived.unique().tolist() == [behind]

    # By tags, in another order than they were sent; of any length, none too.
    texts = [torch.full((length,), float(tag)) for tag, length in enumerate((5, 100_000, 0))]
    works = [dist.isend(text, ahead, tag=tag) for tag, text in enumerate(texts)]
    for tag in (2, 1, 0):
        found = torch.empty_like(texts[tag])
        dist.recv(found, behind, tag=tag)
        assert found.equal(texts[tag])
    for work in works:
        work.wait()

    # A receive that is posted while its message moves aside for another.
    if RANK == 0:
        dist.send(torch.ones(4_000_000), 1, tag=1)
        dist.send(torch.ones(1), 1, tag=2)
    elif RANK == 1:
        last, found = torch.empty(1), torch.empty(4_000_000)
        receiving = dist.irecv(last, 0, tag=2)
        time.sleep(0.03)
        dist.recv(found, 0, tag=1)
        receiving.wait()
        assert found.unique().tolist() == last.tolist() == [1.0]

    # From any rank. The tag tells it from what a fast rank sends next.
    if RANK == 0:
        found = [torch.empty(1) for _ in range(SIZE - 1)]
        sources = [dist.recv(one, tag=9) for one in found]
        assert sorted(sources) == list(range(1, SIZE)) and [int(one) for one in found] == sources
    else:
        dist.send(torch.tensor([float(RANK)]), 0, tag=9)

    # Together.
    into = torch.empty(2, 70_000).t()
    operations = [dist.P2POp(dist.isend, torch.full((140_000,), float(RANK)), ahead), dist.P2POp(dist.irecv, into, behind)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert into.unique().tolist() == [behind]

    # Other lengths.
    if RANK == 0:
        dist.send(torch.ones(3), 1)
        dist.send(torch.ones(4), 1)
    elif RANK == 1:
        with pytest.raises(gdsync.InvalidArgument, match="rank 0 has sent 12 bytes, and 8 are received"):
            dist.recv(torch.empty(2), 0)
        found = torch.empty(4)
        dist.recv(found, 0)
        assert found.tolist() == [1.0] * 4

    # Of a collective, too.
    other = 0 if RANK else 1
    with pytest.raises(gdsync.InvalidArgument, match=f"rank {other} has sent {4 * other + 4} bytes where .* {4 * RANK + 4}: "):
        dist.all_reduce(torch.ones(RANK + 1))

    # Tensors with gaps are put right.
    column = torch.zeros(4, 3)
    column[:, 1] = RANK
    dist.all_reduce(column[:, 1])
    assert column.tolist() == [[0.0, sum(range(SIZE)), 0.0]] * 4


def wrappers():
    """torch's own code above the backend: functional collectives, tensors of a mesh, sharded weights."""
    world = dist.group.WORLD
    assert (functional.all_reduce(torch.full((4,), float(RANK)), "sum", world) + 0).tolist() == [3.0] * 4
    sizes = [[(source + target) % 3 for target in range(SIZE)] for source in range(SIZE)]
    received = [sizes[source][RANK] for source in range(SIZE)]
    rows = functional.all_to_all_single(torch.full((sum(sizes[RANK]),), float(RANK)), received, sizes[RANK], world) + 0
    assert rows.tolist() == [float(source) for source in range(SIZE) for _ in range(received[source])]
    mesh = init_device_mesh("cpu", (SIZE,))
    whole = torch.arange(24.0).reshape(6, 4)
    sharded = distribute_tensor(whole, mesh, [Shard(0)])
    assert sharded.full_tensor().equal(whole) and sharded.sum().full_tensor().item() == 276
    model = torch.nn.Linear(4, 6)
    with torch.no_grad():
        model.weight.copy_(whole)
        model.bias.zero_()
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model(torch.full((2, 4), float(3 * RANK))).sum().backward()
    optimizer.step()
    # The gradient of each weight is the mean of 2 * 3 * rank over the ranks.
    assert model.weight.full_tensor().equal(whole - 6.0)


def groups():
    """Groups of some ranks, at the same time, and after others are destroyed."""
    # As ranks of different hosts they meet at an address.
    _rendezvous._host = lambda: f"host {RANK}"
    pairs = {pair: dist.new_group(list(pair)) for pair in [(0, 1), (1, 2), (0, 2)]}
    for pair, group in pairs.items():
        if RANK in pair:
            data = torch.tensor([float(RANK)])
            dist.all_reduce(data, group=group)
            assert data.item() == sum(pair) and dist.get_backend(group) == "gdsync"
            dist.broadcast(data := torch.tensor([float(RANK)]), pair[1], group=group)
            assert data.item() == pair[1]
            dist.destroy_process_group(group)
    alone = dist.new_group([RANK], use_local_synchronization=True)
    own = torch.ones(3)
    dist.all_reduce(own, group=alone)
    dist.barrier(group=alone)
    assert own.tolist() == [1.0] * 3
    data = torch.ones(2)
    dist.all_reduce(data)
    assert data.tolist() == [SIZE] * 2


def leaves():
    """A rank that has ended has sent what the others wait for; what it has not ends by its name, or by the time."""
    late = dist.new_group(timeout=timedelta(seconds=1))
    if RANK == 0:
        with pytest.raises(gdsync.TimedOut, match="all_reduce of rank 0 in group .* longer than 1 s: .*notification"):
            dist.all_reduce(torch.ones(1), group=late)
    dist.barrier()
    if RANK == 0:
        work = dist.isend(torch.full((10,), 5.0), 1)
        dist.broadcast(torch.full((100_000,), 7.0), 0)
        work.wait()
        return
    # Until its death is known.
    while not dist.group.WORLD._team.dead:
        time.sleep(0.05)
    data, message = torch.empty(100_000), torch.empty(10)
    if RANK == 1:
        dist.recv(message, 0)
        assert message.tolist() == [5.0] * 10
    dist.broadcast(data, 0)
    assert data.unique().tolist() == [7.0]
    with pytest.raises(gdsync.PeerDead) as told:
        dist.recv(torch.empty(1), 0)
    assert told.value.rank == 0
    with pytest.raises(gdsync.PeerDead) as told:
        dist.broadcast(torch.empty(1), 0)
    assert told.value.rank == 0
    with pytest.raises(gdsync.Error):
        dist.all_reduce(torch.empty(1))


if __name__ == "__main__":
    dist.init_process_group("gdsync", timeout=timedelta(minutes=2))
    for name in sys.argv[1:]:
        globals()[name]()
    # Without `destroy_process_group`: a program's end is the same.
