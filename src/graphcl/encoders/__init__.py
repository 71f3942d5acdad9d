r"""Encoders: :math:`f(X, A) = H`, one embedding per node.

An encoder is a module that is called as ``encoder(x, adjacency) -> h``. An encoder that states its
layers (`LayeredEncoder`) works everywhere; any other module only works on whole graphs. Both are
built by ``factory(num_features, dim=, layers=, generator=)``; `ENCODERS` has the factories by name.
"""

from typing import Any, Protocol

import torch
from torch import nn

from graphcl.encoders.layer import Layer, LayeredEncoder, glorot, stated_layers
from graphcl.errors import require
from graphcl.registry import ENCODERS

__all__ = [
    "ENCODERS",
    "EncoderFactory",
    "Layer",
    "LayeredEncoder",
    "build_encoder",
    "glorot",
    "register_encoder",
    "stated_layers",
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


def register_encoder(name: str, factory: EncoderFactory) -> None:
    """Registers an encoder of your own under a name, for recipes and saved runs."""
    ENCODERS.register(name, factory)


def build_encoder(
    encoder: str | EncoderFactory,
    num_features: int,
    *,
    dim: int = 512,
    layers: int = 2,
    generator: torch.Generator,
) -> nn.Module:
    """Returns a freshly initialised encoder on the CPU.

    `encoder` is a name that `ENCODERS` knows, or a factory, which gets the other arguments.
    """
    require(dim >= 1, "build_encoder", "dim", "at least 1", dim)
    require(layers >= 1, "build_encoder", "layers", "at least 1", layers)
    factory: Any = ENCODERS.get(encoder) if isinstance(encoder, str) else encoder
    built = factory(num_features, dim=dim, layers=layers, generator=generator)
    require(isinstance(built, nn.Module), "encoder", "what the factory returns", "a module", built)
    return built  # type: ignore[no-any-return]
