"""Where tensors live: `auto`, `cpu`, `cuda` or `cuda:N`."""

import torch

from graphcl.errors import ParameterError, demand
from graphcl.memory import free_memory_bytes, peak_resident_bytes


def resolve_device(name: str | torch.device) -> torch.device:
    """Returns the device of that name; `auto` is CUDA if there is a GPU, else the CPU.

    Raises:
        ParameterError: the name is not a device, or the device is not present.
    """
    text = str(name)
    if text == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if text == "cpu":
        return torch.device("cpu")
    kind, _, number = text.partition(":")
    demand(
        kind == "cuda" and (not number or number.isdigit()),
        f"device must be auto, cpu, cuda or cuda:N; got {text!r}",
        ParameterError,
    )
    demand(
        torch.cuda.is_available(),
        f"device {text!r}: PyTorch sees no CUDA GPU here; use auto or cpu",
        ParameterError,
    )
    demand(
        not number or int(number) < torch.cuda.device_count(),
        f"device {text!r}: this machine has {torch.cuda.device_count()} CUDA GPUs",
        ParameterError,
    )
    return torch.device(text)


def device_name(device: torch.device) -> str:
    """Returns the marketing name of a GPU, or ``cpu``."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def reset_peak_memory(device: torch.device) -> None:
    """Starts a new measurement of `peak_memory_bytes` on a GPU; a CPU has one per process."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def available_memory_bytes(device: torch.device) -> int:
    """Returns the free memory of a GPU, or what this process can still allocate."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return free_memory_bytes()


def peak_memory_bytes(device: torch.device) -> int:
    """Returns the peak of allocated GPU memory, or of this process's resident memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return peak_resident_bytes()
