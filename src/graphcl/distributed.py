"""Several processes that train together: which rows each one has, and how they communicate.

``torchrun`` starts a group and tells every process its rank and where to meet the others; so can
anything else that sets the variables `RENDEZVOUS`, as operators of Kubernetes do. Gloo transfers
tensors on CPUs and NCCL those on GPUs, unless processes share a GPU. Without a group, the functions
here do what a single process needs.
"""

import os
from collections.abc import Iterator, Sequence
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

from graphcl.errors import InvalidInputError


@dataclass(frozen=True)
class Share:
    """One process's part of a table that is split by rows, in the order of the ranks.

    The parts differ in size by at most one row.

    Attributes:
        rank: this process's number, from 0.
        world: the number of processes.
    """

    rank: int = 0
    world: int = 1

    def rows(self, count: int, rank: int | None = None) -> slice:
        """Returns which of `count` rows belong to `rank`, by default this process."""
        rank = self.rank if rank is None else rank
        each, more = divmod(count, self.world)
        start = rank * each + min(rank, more)
        return slice(start, start + each + (rank < more))

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and prints."""
        return self.rank == 0


ALONE = Share()
_apart: ContextVar[bool] = ContextVar("apart", default=False)


def current_share() -> Share:
    """Returns this process's share in its group; `ALONE` without a group."""
    if dist.is_available() and dist.is_initialized() and not _apart.get():
        return Share(dist.get_rank(), dist.get_world_size())
    return ALONE


@contextmanager
def apart() -> Iterator[None]:
    """Lets each process of a group work alone for a while, for example on its own trainings."""
    token = _apart.set(True)
    try:
        yield
    finally:
        _apart.reset(token)


def beside(device: torch.device) -> int:
    """Returns how many processes of the group, this one included, share the memory of `device`.

    It counts those on this host; on GPUs, as many as there are for each.
    """
    world = current_share().world
    here = min(world, int(os.environ.get("LOCAL_WORLD_SIZE", world)))
    return here if device.type != "cuda" else -(-here // torch.cuda.device_count())


RENDEZVOUS = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def launched() -> bool:
    """Returns whether this process was started as one of a group, by ``torchrun`` or the like."""
    return "TORCHELASTIC_RUN_ID" in os.environ or all(one in os.environ for one in RENDEZVOUS)


def first_process() -> bool:
    """Returns whether this process writes files and prints; the others of a group do not."""
    return not launched() or os.environ.get("RANK", "0") == "0"


def restarted() -> bool:
    """Returns whether ``torchrun`` started this process to replace one that died."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def local_device(device: torch.device) -> torch.device:
    """Returns this process's own GPU if `device` is ``cuda`` without a number, else `device`."""
    named: int | None = device.index
    if device.type == "cuda" and named is None and launched():
        rank = int(os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0")))
        return torch.device("cuda", rank % torch.cuda.device_count())
    return device


@contextmanager
def group(device: torch.device, *, patience: timedelta | None = None) -> Iterator[Share]:
    """Joins the group that this process was started in, if any, and leaves it at the end.

    `patience` is how long processes wait for each other; PyTorch's default if None.
    """
    if not launched() or int(os.environ["WORLD_SIZE"]) == 1 or dist.is_initialized():
        yield current_share()
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    limit: dict[str, Any] = {} if patience is None else {"timeout": patience}
    store, rank, world = next(rendezvous("env://", **limit))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT")  # torchrun's
    if attempt is not None and os.environ.get("GROUP_WORLD_SIZE", "1") == "1":
        # torchrun's store survives a restart: without its own prefix, an attempt would read the
        # addresses of dead processes. Several hosts would not agree on the prefix, as each counts
        # its own restarts; there, set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 to get a store for
        # every attempt.
        store = PrefixStore(f"attempt-{attempt}", store)
    # A name of a GPU is unique across hosts.
    gpu = device.type == "cuda"
    place = str(torch.cuda.get_device_properties(device).uuid) if gpu else "cpu"
    backends = choose_backends(place, store, rank, world)
    dist.init_process_group(backends, store=store, rank=rank, world_size=world, timeout=patience)
    try:
        yield current_share()
    finally:
        dist.destroy_process_group()


def choose_backends(place: str, store: Any, rank: int, world: int) -> str:
    """Returns the backends of a group for CPUs and GPUs; every process gets the same answer.

    NCCL refuses two processes on one GPU and does not support CPUs; then gloo transfers everything,
    through the hosts' memory. With NCCL, gloo still transfers tensors on CPUs, so that a GPU does
    not wait for what the hosts agree on. `place` is ``cpu`` or the name of this process's GPU, and
    `store` is where the processes meet.
    """
    store.set(f"place-{rank}", place)
    places = {store.get(f"place-{each}").decode() for each in range(world)}  # waits for it
    return "gloo" if "cpu" in places or len(places) < world else "cpu:gloo,cuda:nccl"


def gather_parts(rows: Tensor, share: Share, sizes: Sequence[int] | None = None) -> list[Tensor]:
    """Returns the rows of every process, which may differ in number, in the order of ranks.

    They are padded to one number, which `all_gather` requires. Processes ask each other how many
    rows each of them has, unless `sizes` says it.
    """
    if sizes is None:
        sizes = gather_tables(torch.tensor([len(rows)]), share)[:, 0].tolist()
    padded = rows.new_zeros(max(sizes), *rows.shape[1:])
    padded[: len(rows)] = rows
    every = gather_tables(padded, share)
    return [part[:size] for part, size in zip(every, sizes, strict=True)]


def other_tables(
    own: Tensor, shapes: Sequence[tuple[int, ...]], share: Share
) -> Iterator[tuple[int, Tensor]]:
    """Sends `own` to all other processes, and returns an iterator over their tables with ranks.

    The first table is on its way when this returns, and the next one while the caller uses the
    last: on a GPU the transfer has its own stream, on a CPU its own thread. So a process holds two
    tables at most, and every table travels in its own type. All processes must iterate to the end.

    Args:
        own: this process's table.
        shapes: the shapes of the tables of all ranks; their type is that of `own`.
        share: this process's share.
    """
    own = own.contiguous()

    def begin(rank: int) -> tuple[Tensor, Any]:
        table = own if rank == share.rank else own.new_empty(shapes[rank])
        # As bytes, which every backend transfers; gloo does not know bfloat16 everywhere.
        content = table.view(-1).view(torch.uint8)
        return table, dist.broadcast(content, src=rank, async_op=True)

    def each(begun: tuple[Tensor, Any]) -> Iterator[tuple[int, Tensor]]:
        for rank in range(share.world):
            table, work = begun
            work.wait()
            if rank + 1 < share.world:
                begun = begin(rank + 1)
            if rank != share.rank:
                yield rank, table

    return each(begin(0)) if share.world > 1 else iter(())


def gather_tables(table: Tensor, share: Share) -> Tensor:
    """Returns the tables of all processes, ``[world, *shape]``; all must have one shape."""
    if share.world == 1:
        return table[None]
    every = table.new_empty(share.world, *table.shape)
    dist.all_gather(list(every), table.contiguous())
    return every


def fill_rows(table: Tensor, share: Share) -> None:
    """Completes `table` in place after each process has written its share of the rows."""
    for rank in range(share.world if share.world > 1 else 0):
        rows = share.rows(len(table), rank)
        if rows.stop > rows.start:
            dist.broadcast(table[rows], src=rank)


def sum_over(value: Tensor, share: Share) -> Tensor:
    """Returns the sum of a tensor over all processes; it overwrites `value`."""
    if share.world > 1:
        dist.all_reduce(value)
    return value


def max_over(value: Tensor, share: Share) -> Tensor:
    """Returns the maximum of a tensor over all processes; it overwrites `value`."""
    if share.world > 1:
        dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return value


def any_of(asked: bool, share: Share) -> bool:
    """Returns whether any process asked; all processes get the same answer."""
    return bool(max_over(torch.tensor(int(asked)), share))


def from_rank(data: bytes, share: Share, *, rank: int = 0) -> bytes:
    """Returns the bytes that `rank` passed, on every rank; what others pass is ignored."""
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


def agree(problem: str, share: Share, error: type[InvalidInputError]) -> None:
    """Raises the first problem of any process in all of them, so that none waits for another."""
    for rank in range(share.world):
        said = from_rank(problem.encode(), share, rank=rank).decode()
        if said:
            raise error(said)


def data_parallel(module: nn.Module, share: Share) -> nn.Module:
    """Returns `module` for a group of processes; unchanged for one process.

    After the backward pass, `sum_gradients` completes the gradients. On GPUs this is
    `DistributedDataParallel`, which sums while it computes; on CPUs it takes longer to start than
    many a training.
    """
    if share.world == 1:
        return module
    if next(module.parameters()).device.type == "cpu":
        return _SummedAfterwards(module)
    partly = any(getattr(one, "partly_used", False) for one in module.modules())
    parallel = nn.parallel.DistributedDataParallel(module, find_unused_parameters=partly)
    parallel.register_comm_hook(None, _sum_bucket)
    return parallel


def sum_gradients(module: nn.Module) -> None:
    """Makes the gradients of a module of `data_parallel` **sums** over the processes.

    `DistributedDataParallel` would average them. Our loss is a mean over the global batch, and each
    process computes the gradient through its own rows, so the gradient of the loss is the sum. A
    weight that no process used has no gradient, as in one process; on GPUs, an encoder with such
    weights says so (`partly_used`).
    """
    if isinstance(module, _SummedAfterwards):
        module.sum_gradients()


class _SummedAfterwards(nn.Module):
    """Gradients that are summed when all of them are known.

    Weight by weight: gloo adds up more than two ranks in an order that depends on the place in a
    buffer, and a resumed training should end with the same bits.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        with torch.no_grad():
            for tensor in (*module.parameters(), *module.buffers()):
                dist.broadcast(tensor, src=0)

    def forward(self, *arguments: Any) -> Any:
        return self.module(*arguments)

    def sum_gradients(self) -> None:
        weights = [weight for weight in self.module.parameters() if weight.requires_grad]
        used = torch.tensor([weight.grad is not None for weight in weights], dtype=torch.int32)
        dist.all_reduce(used, op=dist.ReduceOp.MAX)  # all must send the same ones
        waiting: list[Any] = []
        for weight, anywhere in zip(weights, used.tolist(), strict=True):
            if anywhere:
                if weight.grad is None:
                    weight.grad = torch.zeros_like(weight)
                waiting.append(dist.all_reduce(weight.grad, async_op=True))
        for work in waiting:
            work.wait()


def _sum_bucket(
    _state: object,
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # DDP checks this annotation
) -> torch.futures.Future[torch.Tensor]:
    work: Any = dist.all_reduce(bucket.buffer(), async_op=True)
    summed: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda f: f.value()[0])
    return summed
