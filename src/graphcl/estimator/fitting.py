"""A training as the estimator runs it: shown, checkpointed, and kept as far as it has come.

After it, the parts of embeddings are brought to one size, and signs that it failed are looked for:
facts about its loss and its embeddings, and no label. A model can go on training later, on a graph
that has grown since.
"""

import copy
import math
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Self

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn

from graphcl.arrays import Floats, Integers
from graphcl.distributed import current_share, from_rank
from graphcl.embedding import embed, embed_graph
from graphcl.encoders import LayeredEncoder
from graphcl.errors import GraphCLError, RunError, TrainingWarning, require
from graphcl.estimator.fitted import Components, Fitted
from graphcl.evaluation.failure import (
    LEAST_NODES,
    LEAST_RANK,
    Sign,
    collapse_sign,
    loss_sign,
)
from graphcl.evaluation.unsupervised import effective_rank, mean_cosine
from graphcl.graphs.graph import Graph
from graphcl.graphs.neighbourhood import Surroundings
from graphcl.graphs.relation import NODE
from graphcl.graphs.scaling import Scaling
from graphcl.graphs.tensors import Prepared, feature_tensor, table_scaling
from graphcl.losses import NTXent
from graphcl.seeding import derive, generator
from graphcl.store.columns import table_rows
from graphcl.training import Checkpoints, EpochMetrics, train
from graphcl.training.checkpoints import Saved
from graphcl.training.loop import Batch, TrainingState, total_steps
from graphcl.training.progress import progress, somebody_watches
from graphcl.views import Drop

WHOLE = 50_000  # nodes of a graph that is embedded at once
RANGES, NODES = 16, 128  # of a larger one, for each type: drawn ranges of nodes, and nodes in each
ENOUGH = 4096  # nodes, over several graphs
FEATURE_VALUES = 1 << 26  # whose directions are looked at, at most
HEALTH_ROWS = 2_000  # embeddings that tell how a training went, at most
MEASURED = 500  # batches are encoded until there are so many of them
INPUT_VALUES = 1 << 22  # of the input that are looked at for that, at most

Sample = Mapping[str, Tensor]  # embeddings, or features, of some nodes of each type
SHARE = 10  # an update trains for one epoch in so many of the first training


@dataclass(frozen=True)
class Task:
    """A training that is ready to begin, on a graph of any kind.

    Attributes:
        fitted: what the training leaves, its encoder on the device that trains.
        source: yields the batches.
        sample: returns embeddings of some nodes by type, once trained; see `calibrate`.
        perturbation: what the views are drawn from.
        trained: what a checkpoint must be of.
        modes: how each graph is trained; empty means as `fitted` says.
        measured: yields batches that are looked at in the end; None: `source`.
        features: returns rows of the scaled features of each type, the same in every process.
    """

    fitted: Fitted
    source: Any
    sample: Callable[[], Sample]
    perturbation: Any
    features: Callable[[], Sample]
    trained: dict[str, Any] = field(default_factory=dict)
    modes: Sequence[str] = ()
    measured: Any = None

    @classmethod
    def of(
        cls,
        fitted: Fitted,
        prepared: Sequence[Prepared],
        source: Any,
        perturbation: Any,
        *,
        device: torch.device,
        **about: Any,
    ) -> Self:
        """Returns a training on one graph or several that are here."""
        sample = partial(sample_graphs, fitted.encoder, prepared, device=device, seed=fitted.seed)
        return cls(
            fitted, source, sample, perturbation, partial(sample_features, prepared), **about
        )


def fit(
    model: Any,
    task: Task,
    *,
    saved: Saved | None,
    checkpoints: Checkpoints | None,
    on_epoch: Callable[[EpochMetrics], object],
) -> None:
    """Trains, brings the parts of embeddings to one size, and looks at how it went.

    The encoder becomes the model's when the first step begins. Interrupted, the model keeps the
    weights it has reached; where training fails, it stays as it was.

    Args:
        model: the estimator.
        task: what is trained.
        saved: the checkpoint to go on from, or None.
        checkpoints: where to save, or None.
        on_epoch: called after each epoch.
    """
    fitted, first = task.fitted, current_share().first
    mode, speaks = fitted.mode, model.verbose and first
    bar = somebody_watches() and first if model.verbose is None else speaks
    assert mode is not None
    if checkpoints:
        checkpoints.begin(task.trained | {"modes": list(task.modes) or [mode.name]}, saved)
    if speaks:
        lines = [f"mode {mode.name}: {mode.reason}", *fitted.describe()]
        print("\n".join(lines), file=sys.stderr, flush=True)
    before, recipe = model._fitted, fitted.components.recipe

    def begin(state: TrainingState) -> None:
        if saved:
            saved.restore(state)
        fitted.history, fitted.seconds = list(state.history), state.seconds
        model._fitted = fitted  # from here on an interrupt leaves the weights reached

    try:
        _train(
            task,
            speaks=bar,
            epochs=recipe.epochs,
            steps=recipe.steps,
            seed=fitted.seed,
            begin=begin,
            on_step=checkpoints or (lambda _: None),
            on_epoch=on_epoch,
        )
    except (GraphCLError, torch.OutOfMemoryError) as error:
        if not isinstance(error, RunError):  # a full disk spoils no weights
            model._fitted = before
        raise
    features = task.features()
    turn(fitted.encoder, features, fitted.seed)
    _complete(task, features)
    assert fitted.health is not None
    for sign in fitted.health.warnings if first else ():
        warnings.warn(f"GraphCL: {sign}", TrainingWarning, stacklevel=3)


def _complete(task: Task, features: Sample) -> None:
    """Brings the parts of embeddings to one size, and measures how the training went."""
    fitted = task.fitted
    calibrate(fitted.encoder, task.sample)
    fitted.health = check_health(
        fitted.components,
        fitted.encoder,
        task.source if task.measured is None else task.measured,
        fitted.history,
        seed=fitted.seed,
        rank_of_features=lambda: rank_of_features(features),
    )


def _train(
    task: Task,
    *,
    speaks: bool,
    seed: int,
    begin: Callable[[TrainingState], None] = lambda _: None,
    on_step: Callable[[TrainingState], object] = lambda _: None,
    on_epoch: Callable[[EpochMetrics], object] = lambda _: None,
    **length: int,
) -> None:
    """Trains the encoder of a task for so many `epochs` or `steps`, and keeps its history.

    Where it was trained before, its epochs and seconds go on.
    """
    fitted, recipe = task.fitted, task.fitted.components.recipe
    done = fitted.history[-1] if fitted.history else EpochMetrics(0, 0.0, 0.0, None, 0.0)
    with progress(speaks=speaks) as show:

        def restore(state: TrainingState) -> None:
            begin(state)
            show.step(state)

        def after_step(state: TrainingState) -> None:
            show.step(state)
            on_step(state)

        def record(metrics: EpochMetrics) -> None:
            fitted.seconds = done.seconds + metrics.seconds
            later = replace(metrics, epoch=done.epoch + metrics.epoch, seconds=fitted.seconds)
            fitted.history.append(later)
            show(metrics)
            on_epoch(metrics)

        train(
            fitted.encoder,
            task.source,
            perturbation=task.perturbation,
            loss=fitted.components.loss,
            learning_rate=recipe.learning_rate,
            weight_decay=recipe.weight_decay,
            seed=seed,
            restore=restore,
            on_step=after_step,
            on_epoch=record,
            **length,
        )


def turn(encoder: nn.Module, features: Sample, seed: int) -> None:
    """Turns what embeddings hold of features to the principal directions of those trained on.

    Of several processes the first decides, so that all have the same bits.
    """
    if not isinstance(encoder, LayeredEncoder) or encoder.part(NODE) is None:
        return
    share = current_share()
    for name, rows in features.items():
        part = encoder.part(name)
        assert part is not None
        if share.first:
            part.turn(rows.to(part.projection.device), generator(seed, "directions", name))
        if share.world > 1:
            own = {key: value.cpu() for key, value in part.state_dict().items()}
            kept = safetensors.torch.save(own) if share.first else b""
            part.load_state_dict(safetensors.torch.load(from_rank(kept, share)))


def sample_features(graphs: Sequence[Prepared]) -> Sample:
    """Returns rows of the scaled features of each type that are trained on."""
    found: dict[str, list[Tensor]] = {}
    for prepared in graphs:
        for name, table in prepared.tables.items():
            rows = table_rows(table, evenly(*table.shape))
            found.setdefault(name, []).append(dense_features(rows, prepared.scaling, name))
        if sum(len(rows) for tables in found.values() for rows in tables) >= ENOUGH:
            break
    return {name: torch.cat(tables) for name, tables in found.items()}


def evenly(size: int, width: int) -> Integers:
    """Returns rows of a table that stand for all, evenly spaced."""
    count = min(size, ENOUGH, max(2, FEATURE_VALUES // max(1, width)))
    return np.unique(np.linspace(0, size - 1, count).astype(np.int64))


def dense_features(rows: Any, scaling: Scaling, name: str) -> Tensor:
    """Returns rows of features of a type scaled, dense."""
    how = table_scaling(scaling, name)
    return feature_tensor(rows, device=torch.device("cpu"), feature_scaling=how).to_dense()


def calibrate(encoder: nn.Module, sample: Callable[[], Sample]) -> None:
    """Sets the sizes of what stands side by side in embeddings, from nodes of the training.

    They are embedded exactly, as `transform` does, which `sample` does. An encoder whose embedding
    is the result of its last layer is left alone.
    """
    if not isinstance(encoder, LayeredEncoder) or encoder.part(NODE) is None:
        return
    for name, rows in sample().items():
        beside = encoder.part(name)
        assert beside is not None
        beside.calibrate(rows)


def sample_graphs(
    encoder: nn.Module, graphs: Sequence[Prepared], *, device: torch.device, seed: int
) -> Sample:
    """Returns embeddings of nodes that were trained on."""
    found: dict[str, list[Any]] = {}
    for prepared in graphs:
        graph = prepared.graph
        options: Any = {"device": device, "feature_scaling": prepared.scaling}
        sizes = {name: one.num_nodes for name, one in graph.nodes.items()}
        if graph.num_nodes > WHOLE:
            around = Surroundings(graph)
            for name, ranges in drawn_ranges(sizes, seed).items():
                for nodes in ranges:
                    z = embed_graph(encoder, graph, nodes={name: nodes}, around=around, **options)
                    found.setdefault(name, []).append(z[name])
        else:
            plain = prepared.schema.is_plain and current_share().world == 1
            z = (
                {NODE: embed(encoder, *prepared.tensors(device))}
                if plain
                else embed_graph(encoder, graph, **options)  # each process computes its rows
            )
            for name, rows in z.items():
                found.setdefault(name, []).append(rows)
        if sum(len(rows) for tables in found.values() for rows in tables) >= ENOUGH:
            break
    return {name: torch.from_numpy(np.concatenate(tables)) for name, tables in found.items()}


def drawn_ranges(sizes: Mapping[str, int], seed: int) -> dict[str, list[slice]]:
    """Returns ranges of nodes of each type that stand for a large graph, ascending."""
    random = np.random.default_rng(derive(seed, "calibration"))
    found = {}
    for name, size in sizes.items():
        found[name] = [slice(0, size)]
        if size >= RANGES * NODES:
            starts = np.sort(random.choice(size // NODES, RANGES, replace=False)) * NODES
            found[name] = [slice(start, start + NODES) for start in starts.tolist()]
    return found


def retrain(
    fitted: Fitted,
    graph: Graph,
    *,
    epochs: int | None = None,
    device: torch.device,
    verbose: bool = False,
    ignore_memory: bool = False,
) -> Fitted:
    """Returns the model after some more epochs; `fitted` itself is left as it is.

    The scaling of features is the training's: weights go on meaning what they meant. Adam starts
    anew. Labels are not looked at. The result has no alignment.

    Args:
        fitted: what the training left.
        graph: the graph as it is now.
        epochs: how many; None is a tenth of the training's, at least one.
        device: where to train.
        verbose: show progress on stderr.
        ignore_memory: start even where the estimate says that memory will not suffice.

    Raises:
        TrainingError: it would not fit in memory, or the loss is no longer finite.
    """
    components, recipe = fitted.components, fitted.components.recipe
    require(epochs is None or epochs >= 1, "retrain", "epochs", "at least 1", epochs)
    prepared = components.seen(fitted.prepare(graph))
    source, (mode,) = components.batches([prepared], device=device, ignore_memory=ignore_memory)
    each, history = source.steps_per_epoch, list(fitted.history)
    count = epochs or max(1, -(-total_steps(recipe.epochs, recipe.steps, each) // each) // SHARE)
    encoder = copy.deepcopy(fitted.encoder).to(device)
    again = replace(fitted, encoder=encoder, history=history, mode=mode, alignment=None)
    task = Task.of(again, [prepared], source, components.perturbation_of(graph), device=device)
    done = history[-1].epoch if history else 0
    seed = derive(fitted.seed, "retrain", done)  # other batches and views than before
    if verbose:
        print(f"mode {mode.name}: {mode.reason}", file=sys.stderr, flush=True)
    _train(task, speaks=verbose, epochs=count, seed=seed)
    _complete(task, task.features())
    return again


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
    rank, cosine = (
        effective_rank(z, seed=seed, sample=HEALTH_ROWS),
        mean_cosine(z, seed=seed, sample=HEALTH_ROWS),
    )
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
def _embeddings(components: Components, encoder: nn.Module, source: Any, seed: int) -> Floats:
    """Returns the embeddings of a batch or a few; in a group of processes, this one's share."""
    entrywise = getattr(components.perturbation, "entrywise", False)
    perturbation: Any = Drop(0.0, 0.0) if entrywise else lambda x, adjacency, _: (x, adjacency)
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
        while count < MEASURED and (batch := next(batches, None)) is not None:
            found.append(batch.encode(encoder, batch.views(random))[0].float().cpu())
            count += batch.num_nodes  # over all processes, so that all encode as many
    encoder.train(was_training)
    return torch.cat(found).numpy()


def rank_of_features(features: Mapping[str, Tensor]) -> float:
    """Returns the effective rank of rows of features, summed over types."""
    total = 0.0
    for rows in features.values():
        count = max(2, min(HEALTH_ROWS, INPUT_VALUES // max(1, rows.shape[1])))
        total += effective_rank(rows[:: -(-len(rows) // count)].numpy())
    return total


def _span(loss: Any, history: Sequence[EpochMetrics]) -> tuple[float, float] | None:
    """Returns the range of NT-Xent for the batches that were trained; None for other losses."""
    bound = history[-1].mi_bound if history else None
    if not isinstance(loss, NTXent) or bound is None:
        return None
    k = math.exp(bound + history[-1].loss)  # the bound is log k − loss, with k = 2M − 2
    return loss.span(round(k / 2) + 1)
