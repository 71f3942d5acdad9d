"""What a part of the user's own gets and returns: checked, so that a fault is said where it is.

Shipped parts are not checked: tests hold them to the same.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from graphcl.errors import PartError
from graphcl.kernels.adjacency import Adjacency
from graphcl.kernels.features import Features, SparseFeatures
from graphcl.registry import is_own, own_name
from graphcl.views import Perturbation

View = tuple[Any, Any]  # features and edges; of a graph with types, each by type or relation


@contextmanager
def seeded_global_draws(seed: int, device: torch.device) -> Iterator[None]:
    """Seeds PyTorch's global generators for a while, and then puts their states back.

    A module of the user's own draws from them: dropout does, and the constructors of PyG's layers.
    """
    on_gpu = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if on_gpu else []):
        torch.default_generator.manual_seed(seed)
        if on_gpu:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


def draw_own_view(
    perturbation: Perturbation, x: Any, adjacency: Any, generator: torch.Generator
) -> View:
    """Returns a view that a perturbation of the user's own draws; it may write to its input.

    Raises:
        PartError: what it returns is no view of the graph.
    """
    name = own_name("perturbation", perturbation)
    view = perturbation(writable(x), writable(adjacency), generator)
    if not isinstance(view, tuple | list) or len(view) != 2:
        raise PartError(f"{name} must return (x, adjacency); got {_described(view)}")
    new_x, new_adjacency = view
    _check_tables(name, "x", x, new_x, _check_features)
    _check_tables(name, "adjacency", adjacency, new_adjacency, _check_adjacency)
    return new_x, new_adjacency


def writable(given: Any) -> Any:
    """Returns a copy of features or of edge weights, which a part may overwrite."""
    if isinstance(given, Mapping):
        return {name: writable(table) for name, table in given.items()}
    if isinstance(given, Tensor):
        return given.clone()
    if isinstance(given, SparseFeatures):
        return given.with_values(given.values.clone())
    own = given.self_weight
    vectors = given.features
    return replace(
        given,
        weight=given.weight.clone(),
        self_weight=None if own is None else own.clone(),
        features=None if vectors is None else vectors.clone(),
    )


def _check_tables(
    name: str, what: str, given: Any, found: Any, check: Callable[[str, str, Any, Any], None]
) -> None:
    """Checks one table, or the tables of all types or relations."""
    if not isinstance(given, Mapping):
        check(name, what, given, found)
        return
    if not isinstance(found, Mapping) or set(found) != set(given):
        keys = ", ".join(map(repr, given))
        raise PartError(
            f"{name} must return {what} as a dictionary with the keys that it was called with "
            f"({keys}); got {_described(found)}"
        )
    for key, table in given.items():
        check(name, f"{what}[{key!r}]", table, found[key])


def _check_features(name: str, what: str, given: Features, found: Any) -> None:
    if not isinstance(found, Tensor | SparseFeatures):
        raise PartError(
            f"{name} must return {what} as a tensor or SparseFeatures; got {_described(found)}"
        )
    if tuple(found.shape) != tuple(given.shape):
        raise PartError(
            f"{name} must return {what} of the shape {list(given.shape)}; got {list(found.shape)}"
        )
    values = found if isinstance(found, Tensor) else found.values
    expected = given if isinstance(given, Tensor) else given.values
    if values.dtype != expected.dtype or values.device != expected.device:
        raise PartError(
            f"{name} must return {what} of {expected.dtype} on {expected.device}; got "
            f"{values.dtype} on {values.device}"
        )
    _check_finite(name, what, values)


def _check_adjacency(name: str, what: str, given: Adjacency, found: Any) -> None:
    if not isinstance(found, Adjacency):
        raise PartError(
            f"{name} must return {what} as it was called with, or {what}.with_weight(weight); got "
            f"{_described(found)}"
        )
    if found.num_nodes != given.num_nodes:
        raise PartError(
            f"{name} must return {what} of {given.num_nodes:,} nodes; got {found.num_nodes:,}"
        )
    entries = len(found.indices)
    if found.weight.shape != (entries,):
        raise PartError(
            f"{name} must return {what} with a weight for each of its {entries:,} entries; got "
            f"weights of the shape {list(found.weight.shape)}"
        )
    _check_finite(name, f"the weights of {what}", found.weight)
    if bool((found.weight < 0).any()):
        raise PartError(f"{name} returned {what} with a negative weight")


def check_own_encoder(encoder: nn.Module) -> None:
    """Refuses an encoder of the user's own that has no weights to train.

    Raises:
        PartError: it has none.
    """
    if not any(parameter.requires_grad for parameter in encoder.parameters()):
        raise PartError(f"{own_name('encoder', encoder)} has no parameters to train")


def check_own_embeddings(encoder: nn.Module, h_1: Any, h_2: Any) -> None:
    """Refuses what no loss can be taken over, from an encoder of the user's own.

    Weights that are no longer finite are not its author's fault but the training's.

    Raises:
        PartError: names the encoder, and what is wrong.
    """
    name = own_name("encoder", encoder)
    for h in (h_1, h_2):
        if not isinstance(h, Tensor) or h.ndim != 2 or not h.is_floating_point():
            raise PartError(
                f"{name} must return a tensor [nodes, dim] of floating-point numbers; got "
                f"{_described(h)}"
            )
        if not h.requires_grad:
            raise PartError(f"{name} returned embeddings that do not depend on its parameters")
    if h_1.shape != h_2.shape:
        raise PartError(
            f"{name} must return embeddings of one shape for both views; got {list(h_1.shape)} "
            f"and {list(h_2.shape)}"
        )
    weights_are_finite = all(bool(one.isfinite().all()) for one in encoder.parameters())
    if weights_are_finite:
        for h in (h_1, h_2):
            _check_finite(name, "embeddings", h)


def check_own_loss(loss: Any, value: Any, h_1: Tensor, h_2: Tensor) -> None:
    """Refuses what cannot be minimised, from a loss of the user's own.

    Raises:
        PartError: names the loss, and what is wrong.
    """
    name = own_name("loss", loss)
    if not isinstance(value, Tensor) or value.ndim != 0:
        raise PartError(f"{name} must return a scalar tensor; got {_described(value)}")
    if not value.requires_grad:
        raise PartError(
            f"{name} returned a number without a gradient: it must depend on h_1 and h_2, and not "
            "on what .detach() or .item() returned"
        )
    if bool(h_1.isfinite().all()) and bool(h_2.isfinite().all()):
        _check_finite(name, "the loss", value)


def check_own_gradients(encoder: nn.Module, loss: Any) -> None:
    """Refuses a loss or an encoder of the user's own that leaves all weights without a gradient.

    Raises:
        PartError: names the part.
    """
    if any(parameter.grad is not None for parameter in encoder.parameters()):
        return
    name = own_name("loss", loss) if is_own(loss) else own_name("encoder", encoder)
    raise PartError(f"{name} gave no weight of the encoder a gradient")


def _check_finite(name: str, what: str, values: Tensor) -> None:
    if not bool(values.isfinite().all()):
        raise PartError(f"{name} returned a number that is not finite, in {what}")


def _described(value: Any) -> str:
    """Returns what a value is, in a few words."""
    if isinstance(value, Tensor):
        return f"a tensor {list(value.shape)} of {value.dtype}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, Mapping):
        return f"a dictionary with the keys {', '.join(map(repr, value)) or '(none)'}"
    return f"an object of type {type(value).__name__}"
