"""Encoders: one embedding per node."""

from graphcl.encoders.encoders import (
    ENCODERS,
    MeanPoolingEncoder,
    PygEncoder,
    ResidualEncoder,
    build_encoder,
    glorot,
)

__all__ = [
    "ENCODERS",
    "MeanPoolingEncoder",
    "PygEncoder",
    "ResidualEncoder",
    "build_encoder",
    "glorot",
]
