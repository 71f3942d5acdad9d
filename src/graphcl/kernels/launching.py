"""Launches of Triton kernels without Triton's own look-up, which takes longer than a small kernel.

For every call Triton works out which compilation its arguments need, in some 25 µs on the host. The
caller of `launch` knows; the compiled kernel is called directly from the second time on.
"""

from typing import Any

from torch import Tensor

_compiled: dict[Any, Any] = {}


def launch(
    kernel: Any,
    grid: tuple[int, ...],
    arguments: tuple[Any, ...],
    constants: tuple[Any, ...],
    *,
    kind: tuple[Any, ...],
    num_warps: int,
    num_stages: int = 3,
) -> None:
    """Launches ``kernel[grid](*arguments, *constants)``.

    Args:
        kernel: its integers must be declared ``do_not_specialize``, and its constants come last.
        grid: number of programs by axis.
        arguments: tensors, tensor descriptors, integers below 2³¹ and floats.
        constants: the ``tl.constexpr`` arguments.
        kind: what else may differ between calls and needs another compilation: the device, types,
            and `aligned` of tensors that the caller has not allocated.
        num_warps: of a program.
        num_stages: of its pipelines.
    """
    key = (kernel, constants, kind, num_warps, num_stages)
    compiled = _compiled.get(key)
    if compiled is None:
        # Under the interpreter nothing is compiled, and this is None every time.
        _compiled[key] = kernel[grid](
            *arguments, *constants, num_warps=num_warps, num_stages=num_stages
        )
    else:
        compiled[(*grid, 1, 1)[:3]](*arguments, *constants)


def aligned(tensor: Tensor) -> bool:
    """Returns whether a tensor begins at a multiple of 16 bytes, as Triton distinguishes."""
    return tensor.data_ptr() % 16 == 0
