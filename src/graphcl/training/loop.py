"""The training loop: which nodes make a batch, and the paper's steps 1 to 4, in one function.

What NT-Xent is taken over is a choice of the batches: nodes of one type in each batch (``each``),
of all types together (``all``), or of chosen types together. The loss itself is the paper's. Nodes
of other types are negatives that are told apart by their type alone.
"""

import math
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from graphcl.distributed import ALONE, Share, current_share, data_parallel, sum_gradients
from graphcl.errors import ParameterError, TrainingError, demand, suggestion
from graphcl.kernels.adam import Adam
from graphcl.kernels.buffers import retry_smaller
from graphcl.kernels.recording import CudaGraphStep
from graphcl.losses import Loss
from graphcl.registry import answerable
from graphcl.seeding import derive, generator
from graphcl.settings import check_setting
from graphcl.views import Perturbation

# Where numbers become infinite, or none at all.
ADVICE = "try a lower learning_rate, a higher temperature or features of a smaller scale"


def steps_of(num_nodes: int, batch_nodes: int) -> int:
    """Returns the number of batches of `batch_nodes`, or fewer, in an epoch; 0 takes all nodes."""
    return 1 if batch_nodes == 0 else -(-num_nodes // batch_nodes)


def contrasted_types(contrast: str, types: Sequence[str]) -> list[str]:
    """Returns the types whose nodes are contrasted.

    Raises:
        ParameterError: a name is unknown.
    """
    if contrast in ("all", "each"):
        return list(types)
    names = [name.strip() for name in contrast.split(",")]
    for name in names:
        if name not in types:
            known = ", ".join(types)
            raise ParameterError(
                f"contrast: must be 'each', 'all' or names of types ({known}); got {name!r}"
                f"{suggestion(name, types)}"
            )
    return list(dict.fromkeys(names))


def batches_in(sizes: Mapping[str, int], contrast: str, batch_nodes: int) -> int:
    """Returns the number of batches in an epoch."""
    chosen = [sizes[name] for name in contrasted_types(contrast, list(sizes))]
    if contrast != "each":
        return steps_of(sum(chosen), batch_nodes)
    return sum(steps_of(size, batch_nodes) for size in chosen)


def node_batches(
    sizes: Mapping[str, int], contrast: str, batch_nodes: int, number: int, seed: int
) -> list[dict[str, Tensor]]:
    """Returns the nodes of each batch of an epoch by type, on the host, in a random order.

    Batches have equal sizes: a last one of few nodes would have few negatives.
    """
    random = generator(seed, "batches", number)
    names = contrasted_types(contrast, list(sizes))
    if contrast == "each":
        found = []
        for name in names:
            order = torch.randperm(sizes[name], generator=random)
            parts = order.tensor_split(steps_of(sizes[name], batch_nodes))
            found += [{name: part} for part in parts]
        if len(names) == 1:
            return found
        return [found[place] for place in torch.randperm(len(found), generator=random).tolist()]
    ends = torch.tensor([sizes[name] for name in names]).cumsum(0)
    order = torch.randperm(int(ends[-1]), generator=random)
    return [
        _by_type(part, names, ends)
        for part in order.tensor_split(steps_of(len(order), batch_nodes))
    ]


def _by_type(nodes: Tensor, names: Sequence[str], ends: Tensor) -> dict[str, Tensor]:
    """Splits numbers over all types into numbers within each; a type without any is left out."""
    kinds = torch.bucketize(nodes, ends, right=True)
    starts = torch.cat([ends.new_zeros(1), ends[:-1]])
    parts = {name: nodes[kinds == k] - starts[k] for k, name in enumerate(names)}
    return {name: part for name, part in parts.items() if len(part)}


@dataclass(frozen=True)
class EpochMetrics:
    """What one epoch leaves behind: a line of `metrics.jsonl`.

    Attributes:
        epoch: its number, from 1.
        loss: mean of the epoch's losses, each over one batch.
        gradient_norm: mean of the norms of the gradient over all parameters.
        mi_bound: the paper's lower bound on mutual information, log k − loss; None for M = 1, and
            for a loss that gives no bound.
        seconds: since training began.
    """

    epoch: int
    loss: float
    gradient_norm: float
    mi_bound: float | None
    seconds: float


@dataclass(frozen=True)
class PartedMetrics(EpochMetrics):
    """What an epoch over a graph in parts leaves behind.

    Attributes:
        sent_bytes: what all processes together sent each other for a step, on average, gradients
            and losses left out.
        cache_hits: the share of the needed rows of other parts that were in a cache; None where no
            such row was needed.
    """

    sent_bytes: float
    cache_hits: float | None


def metrics_of(line: Mapping[str, Any]) -> EpochMetrics:
    """Returns the metrics that a line of `metrics.jsonl` holds.

    Raises:
        TypeError: a key is missing or unknown.
    """
    return PartedMetrics(**line) if "sent_bytes" in line else EpochMetrics(**line)


@dataclass
class TrainingState:
    """All that a training is between two steps; with recipe, graph and seed it decides the rest.

    No random state is in it: the draws of a step are a function of seed, epoch and step.

    Attributes:
        encoder: the weights.
        optimiser: Adam's moments.
        steps_per_epoch: of a whole epoch.
        total: how many steps there will be, of all epochs.
        epoch: how many are done.
        step: how many steps of the epoch that is under way are done.
        results: loss and gradient norm of each of them.
        sizes: M of each of them.
        seconds: since training began, pauses left out.
        history: the epochs that are done.
    """

    encoder: nn.Module
    optimiser: torch.optim.Optimizer
    steps_per_epoch: int
    total: int
    epoch: int = 0
    step: int = 0
    results: list[Tensor] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    seconds: float = 0.0
    history: list[EpochMetrics] = field(default_factory=list)

    @property
    def epochs(self) -> int:
        """How many epochs there will be; the last one may be cut."""
        return -(-self.total // self.steps_per_epoch)

    @property
    def done(self) -> int:
        """How many steps of all are done."""
        return min(self.epoch * self.steps_per_epoch + self.step, self.total)

    @property
    def left(self) -> int:
        """How many steps of the epoch that is under way are left."""
        before = self.epoch * self.steps_per_epoch + self.step
        return min(self.steps_per_epoch - self.step, self.total - before)

    def end_epoch(
        self,
        bound_of: Callable[[float, int], float | None],
        measured: Callable[[EpochMetrics], EpochMetrics] = lambda metrics: metrics,
    ) -> EpochMetrics:
        """Closes the epoch: its steps become one line of history; `measured` may add to it."""
        loss, norm = torch.stack(self.results).mean(dim=0).tolist()
        bound = bound_of(loss, round(sum(self.sizes) / len(self.sizes)))
        metrics = EpochMetrics(self.epoch + 1, loss, norm, bound, self.seconds)
        self.history.append(measured(metrics))
        self.epoch, self.step, self.results, self.sizes = self.epoch + 1, 0, [], []
        return self.history[-1]


class Batch(Protocol):
    """A minibatch B: it knows how its L-hop subgraphs are perturbed and encoded."""

    @property
    def num_nodes(self) -> int:
        """M, the size of the minibatch over all processes."""

    @property
    def recorded_as(self) -> Hashable:
        """Names batches that are the same tensors, filled anew: a GPU replays a recorded step.

        None if no other batch is like it.
        """

    def views(self, generator: torch.Generator) -> Any:
        """Returns two views, drawn now or ahead."""

    def encode(self, encoder: nn.Module, views: Any) -> tuple[Tensor, Tensor]:
        """Returns the embeddings of B, or this process's share, in view 1 and in view 2."""


class BatchSource(Protocol):
    """Whatever yields batches: a graph in memory, a list of graphs, a sampler."""

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches in an epoch."""

    def epoch(
        self,
        number: int,
        seed: int,
        *,
        perturbation: Perturbation,
        first: int = 0,
        share: Share = ALONE,
    ) -> Iterator[Batch]:
        """Yields the batches of one epoch; the same for the same number and seed.

        Args:
            number: the epoch's, from 0.
            seed: decides order and draws.
            perturbation: what the batches' views are drawn from.
            first: the batch to begin with, after so many steps of the epoch.
            share: of each batch, the rows that are this process's own.
        """


def total_steps(epochs: int, steps: int, steps_per_epoch: int) -> int:
    """Returns how many steps a training makes: those of its epochs, at most `steps` unless 0."""
    return min(epochs * steps_per_epoch, steps or epochs * steps_per_epoch)


def train(
    encoder: nn.Module,
    source: BatchSource,
    *,
    perturbation: Perturbation,
    loss: Loss,
    epochs: int,
    steps: int = 0,
    learning_rate: float = 0.001,
    weight_decay: float = 0.0,
    seed: int = 0,
    restore: Callable[[TrainingState], None] = lambda _: None,
    on_step: Callable[[TrainingState], None] = lambda _: None,
    on_epoch: Callable[[EpochMetrics], None] = lambda _: None,
) -> None:
    """Trains `encoder` in place with Adam on the loss between two views of each batch.

    The draws of a step depend on `seed` and the step's number alone. On a CPU, the same seed and
    number of threads give the same weights, bit for bit, whether or not training was interrupted.

    In a group of processes (`graphcl.distributed`) each gives the loss its share of every batch;
    the loss is over the whole batch, and all processes hold the same weights. The source decides
    what each process encodes for that.

    Args:
        encoder: any module called as ``encoder(x, adjacency) -> h``, on the source's device.
        source: yields the batches.
        perturbation: the distribution t that both views are drawn from.
        loss: called with the embeddings of a batch in both views.
        epochs: how often each node is visited, at most.
        steps: training ends after so many, also within an epoch; 0 sets no bound.
        learning_rate: Adam's.
        weight_decay: Adam's, an L2 penalty as in the paper.
        seed: decides batches and views.
        restore: called before the first step; may put an earlier state in place.
        on_step: called after each step, and after each epoch's end with the next one's beginning.
        on_epoch: called after each epoch. An exception raised in any of these ends training.

    Raises:
        TrainingError: the loss is no longer finite, or cannot be divided among processes.
    """
    check_setting("train", "epochs", epochs)
    check_setting("train", "steps", steps)
    device = next(encoder.parameters()).device
    on_gpu, share = device.type == "cuda", current_share()
    adam = Adam(
        encoder.parameters(),
        lr=learning_rate,
        weight_decay=weight_decay,
        fused=True,
        capturable=on_gpu,
    )
    generator = torch.Generator(device=device)
    each = source.steps_per_epoch
    state = TrainingState(encoder, adam, each, total_steps(epochs, steps, each))
    restore(state)
    module = data_parallel(_Encode(encoder), share)
    # Parts of the user's own answer for what they raise.
    draw = answerable("perturbation", perturbation, lambda batch: batch.views(generator))
    encode = answerable("encoder", encoder, module)
    contrast = answerable("loss", loss, _over_processes(loss, share))

    def update(batch: Batch) -> Tensor:
        views = draw(batch)  # step 2: two views
        h_1, h_2 = encode(batch, views)  # step 3: encode both
        value = contrast(h_1, h_2, batch.num_nodes)  # step 4: update the encoder
        adam.zero_grad()
        value.backward()  # type: ignore[no-untyped-call]
        sum_gradients(module)
        adam.step()
        gradients = [p.grad for p in encoder.parameters() if p.grad is not None]
        return torch.stack([value.detach(), torch.nn.utils.get_total_norm(gradients)])

    # A recorded step cannot wait for other processes, and no part of it may depend on the host.
    parts = (encoder, perturbation, loss)
    recordable = on_gpu and share.world == 1
    recordable = recordable and all(getattr(part, "recordable", False) for part in parts)
    recording: Any = closing(CudaGraphStep(update, generator)) if recordable else nullcontext()

    def seeded(batch: Batch) -> Tensor:
        # By the step's number alone: done again in smaller blocks, a step draws the same views.
        generator.manual_seed(derive(seed, "views", state.epoch, state.step))
        if recorded is None or batch.recorded_as is None:
            return update(batch)
        return cast("Tensor", recorded(batch, batch.recorded_as))

    began = time.perf_counter() - state.seconds
    encoder.train()
    with recording as recorded:
        while state.epoch < state.epochs:
            batches: Any = source.epoch(
                state.epoch, seed, perturbation=perturbation, first=state.step, share=share
            )
            with closing(batches):  # a source may draw ahead of an epoch that is cut
                for batch in islice(batches, state.left):  # step 1: a minibatch B
                    # Kept as tensors: reading them here would make a GPU wait for the host.
                    state.results.append(retry_smaller(partial(seeded, batch)))
                    state.sizes.append(batch.num_nodes)
                    state.step += 1
                    state.seconds = time.perf_counter() - began
                    on_step(state)
            metrics = state.end_epoch(
                getattr(loss, "bound", lambda *_: None),
                getattr(source, "measured", lambda metrics: metrics),
            )
            demand(
                math.isfinite(metrics.loss),
                f"the loss became {metrics.loss} in epoch {metrics.epoch}; {ADVICE}",
                TrainingError,
            )
            on_epoch(metrics)
            on_step(state)
    finite = all(bool(torch.isfinite(one).all()) for one in encoder.parameters())
    demand(finite, "the last step made a weight that is not finite; " + ADVICE, TrainingError)


class _Encode(nn.Module):
    """Step 3 as one module: what data parallelism wraps."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, batch: Batch, views: Any) -> tuple[Tensor, Tensor]:
        return batch.encode(self.encoder, views)


def _over_processes(loss: Loss, share: Share) -> Callable[[Tensor, Tensor, int], Tensor]:
    """Returns the loss of a batch of M nodes, of which this process may hold a share of the rows.

    Raises:
        TrainingError: there are several processes, and the loss has no `across`.
    """
    if share.world == 1:
        return lambda h_1, h_2, _: _scalar(loss(h_1, h_2))
    if not hasattr(loss, "across"):
        name = type(loss).__name__
        raise TrainingError(f"the loss {name} trains in one process: it does not define across()")
    across = cast("Any", loss).across
    return lambda h_1, h_2, num_nodes: across(h_1, h_2, num_nodes=num_nodes, share=share)


def _scalar(value: Any) -> Tensor:
    """Returns a loss that can be minimised as it is.

    Raises:
        TypeError: it is none.
    """
    if isinstance(value, Tensor) and value.ndim == 0 and value.requires_grad:
        return value
    what = f"a tensor {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
    raise TypeError(f"a loss returns a scalar tensor that depends on h_1 and h_2; got {what}")
