"""Several processes, one training: who has which rows, and what they tell each other.

A group is what ``torchrun`` starts: it tells every process its rank and where to meet. Gloo carries
what lies on CPUs and NCCL what lies on GPUs, unless processes share one. Without a group everything
here is what one process does alone.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from graphcl.errors import require


@dataclass(frozen=True)
class Share:
    """One process's part of anything that is split by rows: equal to within a row, in order.

    Attributes:
        rank: this process's number, from 0.
        world: how many processes there are.
    """

    rank: int = 0
    world: int = 1

    def rows(self, count: int, rank: int | None = None) -> slice:
        """Returns the rows of `count` that belong to `rank`, this process's own by default."""
        rank = self.rank if rank is None else rank
        each, more = divmod(count, self.world)
        start = rank * each + min(rank, more)
        return slice(start, start + each + (rank < more))

    @property
    def first(self) -> bool:
        """Whether this is the process that writes and speaks."""
        return self.rank == 0


ALONE = Share()
_apart: ContextVar[bool] = ContextVar("apart", default=False)


def current_share() -> Share:
    """Returns this process's place in the group it belongs to, if any."""
    if dist.is_available() and dist.is_initialized() and not _apart.get():
        return Share(dist.get_rank(), dist.get_world_size())
    return ALONE


@contextmanager
def apart() -> Iterator[None]:
    """Lets each process of a group work by itself for a while, as on trainings of its own."""
    token = _apart.set(True)
    try:
        yield
    finally:
        _apart.reset(token)


def launched() -> bool:
    """Says whether ``torchrun`` started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def first_process() -> bool:
    """Says whether this process writes and speaks; the others of a group are silent."""
    return not launched() or os.environ.get("RANK", "0") == "0"


def restarted() -> bool:
    """Says whether ``torchrun`` started this process in place of one that died."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def local_device(device: torch.device) -> torch.device:
    """Returns this process's own GPU where ``cuda`` is asked for without a number."""
    named: int | None = device.index
    if device.type == "cuda" and named is None and launched():
        return torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    return device


@contextmanager
def group(device: torch.device, *, patience: timedelta | None = None) -> Iterator[Share]:
    """Joins the group that ``torchrun`` made, if it did, and leaves it at the end.

    Args:
        device: where this process computes.
        patience: how long to wait for each other; PyTorch's own by default.
    """
    if not launched() or int(os.environ["WORLD_SIZE"]) == 1 or dist.is_initialized():
        yield current_share()
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    store, rank, world = next(rendezvous("env://"))
    if os.environ.get("GROUP_WORLD_SIZE", "1") == "1":
        # torchrun's store outlives a restart: without a name of its own, an attempt would read the
        # addresses of dead processes. Of several hosts each counts its own restarts; there
        # TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 gives every attempt its own store.
        store = PrefixStore(f"attempt-{os.environ['TORCHELASTIC_RESTART_COUNT']}", store)
    backends = carriers(_place(device), store, rank, world)
    dist.init_process_group(backends, store=store, rank=rank, world_size=world, timeout=patience)
    try:
        yield current_share()
    finally:
        dist.destroy_process_group()


def _place(device: torch.device) -> str:
    """Returns a name that no other device has, on any host."""
    if device.type != "cuda":
        return "cpu"
    return str(torch.cuda.get_device_properties(device).uuid)


def carriers(place: str, store: Any, rank: int, world: int) -> str:
    """Returns the backends that carry what lies where, the same for every process of a group.

    Gloo even beside NCCL: what hosts agree on must not make a GPU wait. NCCL refuses two processes
    on one GPU, and has nothing to offer to CPUs; then gloo carries everything, by way of the hosts'
    memory.

    Args:
        place: ``cpu``, or the name of this process's GPU.
        store: where the processes meet.
        rank: this process's number.
        world: how many there are.
    """
    store.set(f"place-{rank}", place)
    places = {store.get(f"place-{each}").decode() for each in range(world)}  # waits for each
    return "gloo" if "cpu" in places or len(places) < world else "cpu:gloo,cuda:nccl"


def gather_rows(rows: Tensor, share: Share, count: int) -> Tensor:
    """Returns all `count` rows, of which each process has its share.

    Every process receives (world − 1) / world of the result; shares are padded to one size.
    """
    if share.world == 1:
        return rows
    sizes = [part.stop - part.start for part in (share.rows(count, r) for r in range(share.world))]
    require(
        len(rows) == sizes[share.rank], "gather_rows", "rows", f"{sizes[share.rank]}", len(rows)
    )
    padded = rows.new_zeros(max(sizes), *rows.shape[1:])
    padded[: len(rows)] = rows
    every = rows.new_empty(share.world, *padded.shape)
    dist.all_gather(list(every), padded)
    if min(sizes) == max(sizes):
        return every.flatten(0, 1)
    return torch.cat([part[:size] for part, size in zip(every, sizes, strict=True)])


def fill_rows(table: Tensor, share: Share) -> None:
    """Completes `table` in place: each process has written its share of the rows."""
    for rank in range(share.world if share.world > 1 else 0):
        rows = share.rows(len(table), rank)
        if rows.stop > rows.start:
            dist.broadcast(table[rows], src=rank)


def sum_over(value: Tensor, share: Share) -> Tensor:
    """Returns the sum of a tensor over all processes, in place."""
    if share.world > 1:
        dist.all_reduce(value)
    return value


def any_of(asked: bool, share: Share) -> bool:
    """Says whether any process says so; all hear the same answer."""
    if share.world == 1:
        return asked
    flag = torch.tensor([int(asked)])
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag)


def from_rank(data: bytes, share: Share, *, rank: int = 0) -> bytes:
    """Returns the bytes that `rank` passed, on every rank; what others pass is not looked at."""
    if share.world == 1:
        return data
    size = torch.tensor([len(data)])
    dist.broadcast(size, src=rank)
    if not int(size):
        return b""
    content = torch.empty(int(size), dtype=torch.uint8)
    if share.rank == rank:
        content = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    dist.broadcast(content, src=rank)
    return content.numpy().tobytes()


def data_parallel(module: nn.Module, share: Share) -> nn.Module:
    """Returns `module` with gradients **summed** over the processes; itself where there is one.

    `DistributedDataParallel` would average them. Our loss is a mean over the global batch, and each
    process computes the gradient that flows through its own rows: their sum is the gradient.
    """
    if share.world == 1:
        return module
    parallel = nn.parallel.DistributedDataParallel(module)
    parallel.register_comm_hook(None, _sum_gradients)
    return parallel


def _sum_gradients(
    _state: object,
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # the hook must say so
) -> torch.futures.Future[torch.Tensor]:
    work: Any = dist.all_reduce(bucket.buffer(), async_op=True)
    summed: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda f: f.value()[0])
    return summed
