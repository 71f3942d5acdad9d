"""The training loop: the paper's steps 1 to 4, on one screen."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from graphcl.errors import TrainingError, require
from graphcl.kernels.blocks import retry_smaller
from graphcl.losses import nt_xent
from graphcl.losses.nt_xent import mutual_information_bound
from graphcl.seeding import derive
from graphcl.training.cuda_graph import CudaGraphStep
from graphcl.views import Perturbation


@dataclass(frozen=True)
class EpochMetrics:
    """What one epoch leaves behind: a line of `metrics.jsonl`.

    Attributes:
        epoch: its number, from 1.
        loss: mean of the epoch's losses, each over one batch.
        gradient_norm: mean of the norms of the gradient over all parameters.
        mi_bound: the paper's lower bound on mutual information, log k − loss; None for M = 1.
        seconds: since training began.
    """

    epoch: int
    loss: float
    gradient_norm: float
    mi_bound: float | None
    seconds: float


class Batch(Protocol):
    """A minibatch B: it knows how its L-hop subgraphs are perturbed and encoded."""

    @property
    def num_nodes(self) -> int:
        """M, the size of the minibatch."""

    def views(self, perturbation: Perturbation, generator: torch.Generator) -> Any:
        """Draws two views."""

    def encode(self, encoder: nn.Module, views: Any) -> tuple[Tensor, Tensor]:
        """Returns the embeddings of B in view 1 and in view 2, each ``[M, dim]``."""


class BatchSource(Protocol):
    """Whatever yields batches: a graph in memory, a list of graphs, a sampler."""

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches in an epoch."""

    @property
    def constant(self) -> bool:
        """Whether every batch is the same tensors, so that a GPU can replay a recorded step."""

    def epoch(self, number: int, seed: int) -> Iterator[Batch]:
        """Yields the batches of one epoch; the same for the same number and seed."""


def train(
    encoder: nn.Module,
    source: BatchSource,
    *,
    perturbation: Perturbation,
    temperature: float,
    epochs: int,
    learning_rate: float = 0.001,
    weight_decay: float = 0.0,
    precision: str = "auto",
    seed: int = 0,
    on_epoch: Callable[[EpochMetrics], None] = lambda _: None,
) -> None:
    """Trains `encoder` in place with Adam on NT-Xent between two views of each batch.

    The draws of a step depend on `seed` and the step's number alone. On a CPU, the same seed gives
    the same weights, bit for bit.

    Args:
        encoder: any module called as ``encoder(x, adjacency) -> h``, on the source's device.
        source: yields the batches.
        perturbation: the distribution t that both views are drawn from.
        temperature: τ of the loss.
        epochs: how often each node is visited.
        learning_rate: Adam's.
        weight_decay: Adam's, an L2 penalty as in the paper.
        precision: of the loss's products; see `nt_xent`.
        seed: decides batches and views.
        on_epoch: called after each epoch; an exception raised in it ends training cleanly.

    Raises:
        TrainingError: the loss is no longer finite.
    """
    require(epochs >= 1, "train", "epochs", "at least 1", epochs)
    device = next(encoder.parameters()).device
    on_gpu = device.type == "cuda"
    adam = torch.optim.Adam(
        encoder.parameters(),
        lr=learning_rate,
        weight_decay=weight_decay,
        fused=True,
        capturable=on_gpu,
    )
    generator = torch.Generator(device=device)

    def update(batch: Batch) -> Tensor:
        views = batch.views(perturbation, generator)  # step 2: two views
        h_1, h_2 = batch.encode(encoder, views)  # step 3: encode both
        loss = nt_xent(h_1, h_2, temperature, precision=precision)  # step 4: update the encoder
        adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        adam.step()
        return torch.stack([loss.detach(), _gradient_norm(encoder)])

    recordable = on_gpu and source.constant and getattr(encoder, "recordable", False)

    def update_or_smaller(batch: Batch) -> Tensor:
        state = generator.get_state()

        def reset() -> None:
            generator.set_state(state)

        return retry_smaller(lambda: update(batch), reset=reset)

    step = CudaGraphStep(update, generator) if recordable else update_or_smaller
    began = time.perf_counter()
    encoder.train()
    try:
        for epoch in range(epochs):
            results, sizes = [], []
            for number, batch in enumerate(source.epoch(epoch, seed)):  # step 1: a minibatch B
                generator.manual_seed(derive(seed, "views", epoch, number))
                # Kept as tensors: reading them here would make a GPU wait for the host.
                results.append(step(batch))
                sizes.append(batch.num_nodes)
            metrics = _summary(epoch + 1, results, sizes, time.perf_counter() - began)
            if not math.isfinite(metrics.loss):
                raise TrainingError(
                    f"the loss became {metrics.loss} in epoch {epoch + 1}; try a lower "
                    "learning_rate, a higher temperature or features of a smaller scale"
                )
            on_epoch(metrics)
    finally:
        if isinstance(step, CudaGraphStep):
            step.close()


def _gradient_norm(encoder: nn.Module) -> Tensor:
    gradients = [p.grad for p in encoder.parameters() if p.grad is not None]
    return torch.nn.utils.get_total_norm(gradients)


def _summary(epoch: int, results: list[Tensor], sizes: list[int], seconds: float) -> EpochMetrics:
    loss, norm = torch.stack(results).mean(dim=0).tolist()
    bound = mutual_information_bound(loss, round(sum(sizes) / len(sizes)))
    return EpochMetrics(epoch, loss, norm, bound, seconds)
