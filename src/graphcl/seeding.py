"""Randomness as an argument.

Every stochastic function of this package takes a `torch.Generator`. The training loop re-seeds
its generator before each step with `derive(seed, stream, step)`. The draws of a step then only
depend on its number, so a resumed training repeats them without a saved random state.
"""

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a seed is derived in commands that need no torch
    import torch


def derive(seed: int, *path: str | int) -> int:
    """Returns a 63-bit seed, derived from `seed` and a path of names and numbers.

    Different paths give independent streams, such as ``derive(0, "views", 7)`` and
    ``derive(0, "weights")``.
    """
    text = "/".join(str(part) for part in (seed, *path))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(
    seed: int, *path: str | int, device: "torch.device | str" = "cpu"
) -> "torch.Generator":
    """Returns a generator on `device`, seeded with ``derive(seed, *path)``."""
    import torch

    return torch.Generator(device=device).manual_seed(derive(seed, *path))
