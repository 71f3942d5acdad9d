"""How a training went: facts about its loss and its embeddings, and signs that it failed.

No label is looked at here.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from graphcl.distributed import current_share
from graphcl.estimator.components import Components
from graphcl.evaluation.failure import (
    LEAST_NODES,
    LEAST_RANK,
    Sign,
    collapse_sign,
    loss_sign,
)
from graphcl.evaluation.unsupervised import effective_rank, mean_cosine
from graphcl.kernels.adjacency import Adjacency
from graphcl.kernels.features import Features
from graphcl.losses import NTXent
from graphcl.seeding import derive
from graphcl.training import EpochMetrics
from graphcl.training.loop import Batch
from graphcl.views import Drop, Perturbation

ROWS = 2_000  # embeddings that are measured, at most
ENOUGH = 500  # batches are encoded until there are so many
_FEATURE_VALUES = 1 << 22  # of the input that are looked at, at most

Rows = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Health:
    """How a training went. The embeddings are what was contrasted, without parts beside it.

    Attributes:
        effective_rank: how many directions the embeddings use (RankMe): 1 if all are multiples of
            one. None for fewer than two nodes.
        mean_cosine: of two nodes' embeddings: 1 if they all point the same way.
        warnings: signs that the training failed; empty if there are none.
    """

    effective_rank: float | None = None
    mean_cosine: float | None = None
    warnings: tuple[Sign, ...] = ()


def check_health(
    components: Components,
    encoder: nn.Module,
    source: Any,
    history: Sequence[EpochMetrics],
    *,
    seed: int,
    rank_of_features: Callable[[], float] = lambda: math.inf,
) -> Health:
    """Measures a training that has ended.

    It encodes one more batch, or a few if they are small, without perturbation and without a
    gradient: that takes less time than as many steps of the training, and no more memory, whatever
    the size of the graph.

    Args:
        components: the recipe, and the loss.
        encoder: the trained encoder.
        source: what it was trained on.
        history: all epochs.
        seed: decides the batches.
        rank_of_features: says what can be expected of the embeddings; called if they are few.
    """
    z = _embeddings(components, encoder, source, seed)
    if len(z) < 2 or not np.isfinite(z).all():
        return Health()
    rank, cosine = effective_rank(z, seed=seed, sample=ROWS), mean_cosine(z, seed=seed, sample=ROWS)
    if len(z) < LEAST_NODES:
        return Health(rank, cosine)
    allowed = float(z.shape[1])
    if rank < LEAST_RANK:  # rarely: the features need not be looked at otherwise
        allowed = min(allowed, rank_of_features())
    settings = asdict(components.recipe)
    signs = (
        loss_sign([epoch.loss for epoch in history], _span(components.loss, history), settings),
        collapse_sign(rank, cosine, allowed=allowed, settings=settings),
    )
    return Health(rank, cosine, tuple(sign for sign in signs if sign is not None))


@torch.no_grad()
def _embeddings(components: Components, encoder: nn.Module, source: Any, seed: int) -> Rows:
    """Returns the embeddings of a batch or a few; in a group of processes, this one's share."""
    entrywise = getattr(components.perturbation, "entrywise", False)
    perturbation: Perturbation = Drop(0.0, 0.0) if entrywise else _as_it_is
    device, was_training = next(encoder.parameters()).device, encoder.training
    random = torch.Generator(device=device).manual_seed(derive(seed, "health"))
    encoder.eval()
    batch: Batch | None
    batches: Any = source.epoch(
        components.recipe.epochs, seed, perturbation=perturbation, share=current_share()
    )
    with closing(batches):  # it may have a thread that prepares the next batch
        found: list[Tensor] = []
        count = 0
        while count < ENOUGH and (batch := next(batches, None)) is not None:
            found.append(batch.encode(encoder, batch.views(random))[0].float().cpu())
            count += batch.num_nodes  # over all processes, so that all encode as many
    encoder.train(was_training)
    return torch.cat(found).numpy()


def _as_it_is(
    x: Features,
    adjacency: Adjacency,
    _: torch.Generator,
) -> tuple[Features, Adjacency]:
    return x, adjacency


def rank_of_features(features: Mapping[str, Tensor]) -> float:
    """Returns the effective rank of rows of features, summed over types."""
    total = 0.0
    for rows in features.values():
        count = max(2, min(ROWS, _FEATURE_VALUES // max(1, rows.shape[1])))
        total += effective_rank(rows[:: -(-len(rows) // count)].numpy())
    return total


def _span(loss: Any, history: Sequence[EpochMetrics]) -> tuple[float, float] | None:
    """Returns the range of NT-Xent for the batches that were trained; None for other losses."""
    bound = history[-1].mi_bound if history else None
    if not isinstance(loss, NTXent) or bound is None:
        return None
    k = math.exp(bound + history[-1].loss)  # the bound is log k − loss, with k = 2M − 2
    return loss.span(round(k / 2) + 1)
