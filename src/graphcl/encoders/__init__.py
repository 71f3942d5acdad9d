r"""Encoders: :math:`f(X, A) = H`, one embedding per node.

An encoder is a module that is called as ``encoder(x, adjacency) -> h``. An encoder that states its
layers (`LayeredEncoder`) works everywhere; any other module only works on whole graphs. Both are
built by ``factory(num_features, dim=, layers=, generator=)``; `ENCODERS` has the factories by name,
and `ENCODERS.register` makes one of your own known, for recipes and saved runs.
"""

from typing import Any, Protocol

import torch
from torch import nn

from graphcl.encoders.layer import Layer, LayeredEncoder, glorot, layered
from graphcl.encoders.side_by_side import SideBySide
from graphcl.errors import ParameterError, require
from graphcl.registry import ENCODERS
from graphcl.settings import ENCODER_OPTIONS, WITH_OPTIONS

__all__ = [
    "ENCODERS",
    "EncoderFactory",
    "Layer",
    "LayeredEncoder",
    "SideBySide",
    "build_encoder",
    "glorot",
    "layered",
]


class EncoderFactory(Protocol):
    """Builds an encoder: a subclass of `nn.Module`, or a function."""

    def __call__(
        self, num_features: int, *, dim: int, layers: int, generator: torch.Generator
    ) -> nn.Module:
        """Returns a fresh encoder on the CPU.

        Args:
            num_features: P, the width of the input.
            dim: P', the width of the embedding.
            layers: L.
            generator: a CPU generator; the weights depend on nothing else.
        """


def build_encoder(
    encoder: str | EncoderFactory,
    num_features: int,
    *,
    dim: int = 512,
    layers: int = 2,
    generator: torch.Generator,
    **beyond: Any,
) -> nn.Module:
    """Returns a freshly initialised encoder on the CPU.

    Args:
        encoder: a name that `ENCODERS` knows, or a factory, which gets the other arguments.
        num_features: P, the width of the input.
        dim: P', the width of the embedding.
        layers: L.
        generator: a CPU generator; the weights depend on nothing else.
        beyond: `normalisation`, `side_by_side`, `own_features`, `repeat_own` and
            `smoothed_features`, which only the paper's encoders take. Values that turn them off are
            not passed on.

    Raises:
        ParameterError: the encoder takes none of these, or a value is out of bounds.
    """
    require(dim >= 1, "build_encoder", "dim", "at least 1", dim)
    require(layers >= 1, "build_encoder", "layers", "at least 1", layers)
    factory: Any = ENCODERS.get(encoder) if isinstance(encoder, str) else encoder
    asked = {key: value for key, value in beyond.items() if value != ENCODER_OPTIONS[key]}
    if asked and not getattr(factory, "takes_beyond", False):
        known = " and ".join(WITH_OPTIONS)
        name = encoder if isinstance(encoder, str) else getattr(encoder, "__name__", "given")
        raise ParameterError(f"encoder {name!r} takes no {min(asked)}; only {known} do")
    built = factory(num_features, dim=dim, layers=layers, generator=generator, **asked)
    require(isinstance(built, nn.Module), "encoder", "what the factory returns", "a module", built)
    return built  # type: ignore[no-any-return]
