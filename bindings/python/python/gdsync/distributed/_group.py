"""Process groups: the operations of ``torch.distributed`` as exchanges."""

from __future__ import annotations

import atexit
import os
import threading
import time
from functools import partial
from typing import Any, Callable, Optional, Sequence

import torch
from torch import Tensor
from torch._C import _distributed_c10d

import gdsync

from .._errors import Error, InvalidArgument, Unsupported
from ._lanes import CudaLane, Lane, SoftLane, Transfer, each, flat
from ._messages import PointToPoint
from ._reduce import operation_of, reduce
from ._work import Several, Work

# How long a group that is destroyed, or a program that ends, waits for what it has sent, in seconds.
LEAVING = 5.0

# The groups that were not destroyed.
_alive: list[Group] = []

# Its types differ among versions of torch.
_ProcessGroup: Any = getattr(_distributed_c10d, "ProcessGroup")


class Group(_ProcessGroup):
    """A process group of the backend ``gdsync``."""

    supports_splitting = False
    supports_coalescing = True

    def __init__(self, team: gdsync.Team, gpu: Optional[int], timeout: float) -> None:
        super().__init__(team.rank, team.size)
        self._team, self._rank, self._size, self._timeout = team, team.rank, team.size, timeout
        self._group_name = self._group_desc = ""
        # All ranks make these in this order.
        self._soft: Lane = SoftLane(team, timeout)
        self._cuda: Optional[CudaLane] = None if gpu is None else CudaLane(team, gpu, timeout)
        self._messages = PointToPoint(team)
        # Operations since torch began to collect them: those that run, and messages of a GPU.
        self._collected: Optional[list[Any]] = None
        self._sends: list[Transfer] = []
        self._receives: list[Transfer] = []
        self._lock = threading.RLock()
        # Why an exchange was posted in part.
        self._broken: Optional[BaseException] = None
        _alive.append(self)

    def getBackendName(self) -> str:
        return "gdsync"

    def _get_backend(self, device: torch.device) -> Any:
        # The group is its only backend.
        return self

    def setGroupName(self, name: str) -> None:
        self._group_name = name

    def getGroupName(self) -> str:
        return self._group_name

    def setGroupDesc(self, text: str) -> None:
        self._group_desc = text

    def getGroupDesc(self) -> str:
        return self._group_desc

    # -- Collectives

    def allreduce(self, tensors: Sequence[Tensor], opts: Any = None) -> Any:
        operation = operation_of(opts, tensors[0].dtype)
        return self._operation("all_reduce", tensors, tensors, tensors, partial(self._all_reduce, operation))

    def reduce(self, tensors: Sequence[Tensor], opts: Any) -> Any:
        operation, root = operation_of(opts, tensors[0].dtype), opts.rootRank

        def steps(lane: Lane, work: Work, tensors: list[Tensor], _: Any) -> None:
            for tensor in tensors:
                own = lane.empty(1, tensor, self._block(tensor))[0]
                blocks = self._blocks(tensor)
                own = own[: len(blocks[self._rank])]
                self._reduce_blocks(lane, work, blocks, own, operation)
                here = each(blocks) if self._rank == root else ()
                lane.exchange(work, [(root, flat(own))], list(here))

        return self._operation("reduce", tensors, tensors, tensors, steps)

    def broadcast(self, tensors: Sequence[Tensor], opts: Any) -> Any:
        root = opts.rootRank

        def steps(lane: Lane, work: Work, tensors: list[Tensor], _: Any) -> None:
            for tensor in tensors:
                others = [rank for rank in range(self._size) if rank != root]
                sends = [(rank, flat(tensor)) for rank in others] if self._rank == root else []
                lane.exchange(work, sends, [] if self._rank == root else [(root, flat(tensor))])

        return self._operation("broadcast", tensors, tensors, tensors, steps)

    def allgather(self, output_tensors: Sequence[Sequence[Tensor]], input_tensors: Sequence[Tensor], opts: Any = None) -> Any:
        outputs = [tensor for row in output_tensors for tensor in row]
        return self._operation("all_gather", outputs, input_tensors, output_tensors, self._all_gather)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Any:
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None) -> Any:
        def steps(lane: Lane, work: Work, outputs: list[Tensor], inputs: list[Tensor]) -> None:
            for output, input in zip(outputs, inputs):
                self._all_gather(lane, work, self._even(output), [input])

        return self._operation("all_gather_single", outputs, inputs, outputs, steps)

    def gather(self, output_tensors: Sequence[Sequence[Tensor]], input_tensors: Sequence[Tensor], opts: Any) -> Any:
        outputs = [tensor for row in output_tensors for tensor in row]

        def steps(lane: Lane, work: Work, outputs: list[Tensor], inputs: list[Tensor]) -> None:
            lane.exchange(work, [(opts.rootRank, flat(inputs[0]))], list(each(outputs)))

        return self._operation("gather", outputs, input_tensors, output_tensors, steps)

    def scatter(self, output_tensors: Sequence[Tensor], input_tensors: Sequence[Sequence[Tensor]], opts: Any) -> Any:
        inputs = [tensor for row in input_tensors for tensor in row]

        def steps(lane: Lane, work: Work, outputs: list[Tensor], inputs: list[Tensor]) -> None:
            lane.exchange(work, list(each(inputs)), [(opts.rootRank, flat(outputs[0]))])

        return self._operation("scatter", output_tensors, inputs, output_tensors, steps)

    def reduce_scatter(self, output_tensors: Sequence[Tensor], input_tensors: Sequence[Sequence[Tensor]], opts: Any) -> Any:
        operation, inputs = operation_of(opts, output_tensors[0].dtype), [tensor for row in input_tensors for tensor in row]

        def steps(lane: Lane, work: Work, outputs: list[Tensor], inputs: list[Tensor]) -> None:
            self._reduce_blocks(lane, work, inputs, outputs[0], operation)

        return self._operation("reduce_scatter", output_tensors, inputs, output_tensors, steps)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Any:
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None) -> Any:
        operation = operation_of(opts, outputs[0].dtype)

        def steps(lane: Lane, work: Work, outputs: list[Tensor], inputs: list[Tensor]) -> None:
            for output, input in zip(outputs, inputs):
                self._reduce_blocks(lane, work, self._even(input), output, operation)

        return self._operation("reduce_scatter_single", outputs, inputs, outputs, steps)

    def alltoall(self, output_tensor: Sequence[Tensor], input_tensor: Sequence[Tensor], opts: Any = None) -> Any:
        def steps(lane: Lane, work: Work, outputs: list[Tensor], inputs: list[Tensor]) -> None:
            lane.exchange(work, list(each(inputs)), list(each(outputs)))

        return self._operation("all_to_all", output_tensor, input_tensor, output_tensor, steps)

    def all_to_all_single(
        self, output: Tensor, input: Tensor, output_split_sizes: Sequence[int], input_split_sizes: Sequence[int], opts: Any = None
    ) -> Any:
        def steps(lane: Lane, work: Work, outputs: list[Tensor], inputs: list[Tensor]) -> None:
            sends, receives = self._rows(inputs[0], input_split_sizes), self._rows(outputs[0], output_split_sizes)
            lane.exchange(work, list(each(sends)), list(each(receives)))

        return self._operation("all_to_all_single", [output], [input], [output], steps)

    def barrier(self, opts: Any = None) -> Any:
        lane: Lane = self._soft if self._cuda is None else self._cuda
        sent = lane.empty(1, torch.empty(0, dtype=torch.uint8), self._size)[0]
        arrived = torch.empty_like(sent)
        work = self._operation("barrier", [arrived], [sent], [], lambda lane, work, arrived, sent: lane.exchange(
            work, list(each(self._even(sent[0]))), list(each(self._even(arrived[0])))
        ))  # fmt: skip
        if self._cuda is not None:
            # The program's next command of the CPU is behind it, too.
            work.wait()
            torch.cuda.current_stream().synchronize()
            self._cuda.check()
        return work

    # The names of other versions of torch.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single
    allreduce_coalesced = allreduce

    def allgather_coalesced(self, output_lists: Sequence[Sequence[Tensor]], input_list: Sequence[Tensor], opts: Any = None) -> Any:
        works = [self.allgather([outputs], [input]) for outputs, input in zip(output_lists, input_list)]
        return Several(works, output_lists)

    def _all_reduce(self, operation: str, lane: Lane, work: Work, tensors: list[Tensor], _: Any) -> None:
        for tensor in tensors:
            if tensor.nbytes <= lane.room:
                # In one exchange: each rank reduces all.
                parts = lane.empty(self._size, tensor, tensor.numel())
                self._all_gather(lane, work, list(parts), [tensor])
                lane.run(work, partial(reduce, parts, tensor.reshape(-1), operation))
                continue
            blocks = self._blocks(tensor)
            self._reduce_blocks(lane, work, blocks, blocks[self._rank], operation)
            self._all_gather(lane, work, blocks, [blocks[self._rank]])

    def _all_gather(self, lane: Lane, work: Work, outputs: list[Tensor], inputs: list[Tensor]) -> None:
        lane.exchange(work, [(rank, flat(inputs[0])) for rank in range(self._size)], list(each(outputs)))

    def _reduce_blocks(self, lane: Lane, work: Work, blocks: Sequence[Tensor], into: Tensor, operation: str) -> None:
        """Sends a block to each rank, and reduces those that arrive."""
        parts = lane.empty(self._size, into, into.numel())
        lane.exchange(work, list(each(blocks)), list(each(list(parts))))
        lane.run(work, partial(reduce, parts, into.reshape(-1), operation))

    def _block(self, tensor: Tensor) -> int:
        return -(-int(tensor.numel()) // self._size)

    def _blocks(self, tensor: Tensor) -> list[Tensor]:
        """Divides the numbers of a tensor among the ranks."""
        numbers, block = tensor.detach().reshape(-1), self._block(tensor)
        return [numbers[rank * block : (rank + 1) * block] for rank in range(self._size)]

    def _even(self, tensor: Tensor) -> list[Tensor]:
        """Divides the numbers of a tensor evenly among the ranks."""
        if tensor.numel() % self._size:
            raise InvalidArgument(f"a tensor of {tensor.numel()} numbers does not divide among {self._size} ranks: give a multiple")
        return self._blocks(tensor)

    def _rows(self, tensor: Tensor, sizes: Sequence[int]) -> list[Tensor]:
        """Divides the rows of a tensor among the ranks, by their split sizes or evenly."""
        if not sizes:
            return self._even(tensor)
        if len(sizes) != self._size or sum(sizes) != len(tensor):
            raise InvalidArgument(f"the split sizes {list(sizes)} do not divide {len(tensor)} rows among {self._size} ranks")
        return list(torch.split(tensor.detach(), list(sizes)))

    # -- Messages

    def send(self, tensors: Sequence[Tensor], dst: int, tag: int = 0) -> Any:
        tensor = _contiguous(tensors[0])
        if tensor.is_cuda:
            return self._message_of_gpu(tensor, None, dst)
        work = self._work(f"the message to rank {dst}", tensors, lambda: "the rank has not received it")
        self._messages.send(work, dst, tag, (tensor.data_ptr(), tensor.nbytes, tensor))
        return self._collect(work)

    def recv(self, tensors: Sequence[Tensor], src: int, tag: int = 0) -> Any:
        return self._receive(f"the message from rank {src}", tensors[0], src, tag)

    def recv_anysource(self, tensors: Sequence[Tensor], tag: int = 0) -> Any:
        return self._receive("the message from any rank", tensors[0], None, tag)

    recvAnysource = recv_anysource

    def _receive(self, what: str, tensor: Tensor, rank: Optional[int], tag: int) -> Any:
        into = _contiguous(tensor)
        if tensor.is_cuda:
            if rank is None:
                raise Unsupported("a tensor of a GPU is received from a rank that the program names: its stream waits for one")
            return self._message_of_gpu(into, tensor, rank)
        work = self._work(what, [tensor], lambda: "the rank has not sent it")
        if into is not tensor:
            work.last.append(partial(tensor.copy_, into))
        self._messages.receive(work, rank, tag, (into.data_ptr(), into.nbytes, into))
        return self._collect(work)

    def _message_of_gpu(self, tensor: Tensor, into: Optional[Tensor], rank: int) -> Any:
        """Sends or receives in the order of the GPU's stream; in a batch of messages, together with the others."""
        with self._lock:
            if self._collected is None:
                self._start_coalescing(tensor.device)
                self._message_of_gpu(tensor, into, rank)
                return self._end_coalescing(tensor.device)
            if into is not None and into is not tensor:
                raise InvalidArgument("a tensor of a GPU that is received is contiguous")
            (self._sends if into is None else self._receives).append((rank, flat(tensor)))
            return None

    def _start_coalescing(self, device: torch.device) -> None:
        self._collected = []

    def _end_coalescing(self, device: torch.device) -> Any:
        works, self._collected = self._collected or [], None
        sends, self._sends = self._sends, []
        receives, self._receives = self._receives, []
        if sends or receives:
            works.append(self._operation("messages", [part for _, part in receives], [part for _, part in sends], [],
                                         lambda lane, work, *_: self._exchanges(lane, work, sends, receives)))  # fmt: skip
        return works[0] if len(works) == 1 else Several(works, [])

    start_coalescing = _start_coalescing
    end_coalescing = _end_coalescing

    def _exchanges(self, lane: Lane, work: Work, sends: list[Transfer], receives: list[Transfer]) -> None:
        """Messages in both directions: the first to and from each rank, then the second."""
        while sends or receives:
            first, sends = _first_of_each(sends)
            last, receives = _first_of_each(receives)
            lane.exchange(work, first, last)

    # -- Their common part

    def _operation(
        self, what: str, outputs: Sequence[Tensor], inputs: Sequence[Tensor], result: Any, steps: Callable[..., None]
    ) -> Any:
        """Posts the steps of an operation on the stream of its tensors."""
        lane = self._lane_of([*outputs, *inputs])
        work = self._work(f"{what} of rank {self._rank} in group {self._group_name!r}", result, lane.blocked)
        into, of = [_contiguous(tensor) for tensor in outputs], [_contiguous(tensor) for tensor in inputs]
        for tensor, contiguous in zip(outputs, into):
            if contiguous is not tensor:
                work.last.append(partial(tensor.copy_, contiguous))
        with self._lock:
            if self._broken is not None:
                raise Error(f"an earlier operation of the group has failed, so the ranks' operations differ: {self._broken}") from self._broken
            lane.begin([*into, *of])
            try:
                steps(lane, work, into, of)
            except InvalidArgument:
                raise
            except BaseException as error:
                self._broken = error
                raise
            lane.finish(work)
        return self._collect(work)

    def _work(self, what: str, result: Any, blocked: Callable[[], Optional[str]]) -> Work:
        return Work(what, result, self._timeout, blocked)

    def _collect(self, work: Any) -> Any:
        if self._collected is not None:
            self._collected.append(work)
        return work

    def _lane_of(self, tensors: Sequence[Tensor]) -> Lane:
        kinds = {tensor.device for tensor in tensors}
        if any(tensor.is_sparse for tensor in tensors):
            raise InvalidArgument("the backend gdsync exchanges dense tensors: give to_dense() of this one")
        if kinds == {torch.device("cpu")}:
            return self._soft
        if self._cuda is not None and kinds == {self._cuda.device}:
            return self._cuda
        own = "no GPU for each rank" if self._cuda is None else str(self._cuda.device)
        raise InvalidArgument(
            f"the tensors are on {', '.join(sorted(map(str, kinds)))}, and the group has the CPU and {own}: give all tensors of an operation on "
            "one of them, and the rank's GPU to torch.cuda.set_device or init_process_group(device_id=...) before the group is made"
        )

    # -- The end

    def shutdown(self) -> None:
        """Waits until what this rank has sent has arrived, and leaves the team."""
        if self not in _alive:
            return
        _alive.remove(self)
        end = time.monotonic() + LEAVING
        streams = [lane.stream.synchronize for lane in (self._soft, self._cuda) if lane is not None]
        for wait in (*streams, self._team.flush):
            try:
                wait(max(0.0, end - time.monotonic()))
            except Error:
                # A rank that is dead, or does not take part, gets nothing.
                pass
        self._messages.stop()

    def abort(self) -> None:
        """Leaves the team at once."""
        if self in _alive:
            _alive.remove(self)
            self._messages.stop()


def _first_of_each(transfers: Sequence[Transfer]) -> tuple[list[Transfer], list[Transfer]]:
    """Divides transfers into the first of each rank and the others."""
    first: dict[int, Transfer] = {}
    others = []
    for rank, part in transfers:
        if rank in first:
            others.append((rank, part))
        else:
            first[rank] = (rank, part)
    return list(first.values()), others


def _contiguous(tensor: Tensor) -> Tensor:
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def _leave() -> None:
    for group in list(_alive):
        group.shutdown()


# Before the package's own end, as it is registered later. The child of a fork has no part in its parent's groups.
atexit.register(_leave)
os.register_at_fork(after_in_child=_alive.clear)
