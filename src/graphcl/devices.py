"""Where tensors live: `auto`, `cpu`, `cuda` or `cuda:N`."""

import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from graphcl.errors import ParameterError


def resolve_device(name: str | torch.device) -> torch.device:
    """Returns the device that `name` means here; `auto` is CUDA where there is one.

    Raises:
        ParameterError: the name is none of the above, or that device is not present.
    """
    text = str(name)
    if text == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if text == "cpu":
        return torch.device("cpu")
    kind, _, number = text.partition(":")
    if kind != "cuda" or (number and not number.isdigit()):
        raise ParameterError(f"device must be auto, cpu, cuda or cuda:N; got {text!r}")
    if not torch.cuda.is_available():
        raise ParameterError(f"device {text!r}: PyTorch sees no CUDA GPU here; use auto or cpu")
    if number and int(number) >= torch.cuda.device_count():
        raise ParameterError(
            f"device {text!r}: this machine has {torch.cuda.device_count()} CUDA GPUs"
        )
    return torch.device(text)


def device_name(device: torch.device) -> str:
    """Returns the marketing name of a GPU, or ``cpu``."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def reset_peak_memory(device: torch.device) -> None:
    """Starts a new measurement of `peak_memory_bytes` on a GPU; a CPU process has only one."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def available_memory_bytes(device: torch.device) -> int:
    """Returns the memory that is free on a GPU, or that this process can still be given.

    On a CPU that is the least of what the machine has free, what its control group leaves (a
    container's or a scheduler's limit) and what its own limits leave (``ulimit -d`` and ``-v``).
    """
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    free = _kilobytes(Path("/proc/meminfo"), "MemAvailable")
    return max(0, min([total if free is None else free, *_limits_left()]))


def _limits_left() -> Iterator[int]:
    for limit, used in ((resource.RLIMIT_DATA, "VmData"), (resource.RLIMIT_AS, "VmSize")):
        allowed = resource.getrlimit(limit)[0]
        if allowed != resource.RLIM_INFINITY:
            yield allowed - (_kilobytes(Path("/proc/self/status"), used) or 0)
    for folder in _control_groups(Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")):
        left = _control_group_left(folder)
        if left is not None:
            yield left


def _control_groups(root: Path, membership: Path) -> Iterator[Path]:
    """Yields the folders of this process's memory groups, from its own up to the root."""
    lines = membership.read_text().splitlines() if membership.exists() else []
    for line in lines:
        _, kinds, name = line.split(":", 2)
        if kinds == "" or "memory" in kinds.split(","):
            top = root if kinds == "" else root / "memory"
            own = top / name.lstrip("/")
            yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(top))


def _control_group_left(folder: Path) -> int | None:
    """Returns a group's limit less what it uses and cannot drop; None without a limit."""
    for limit, cache in (("memory.max", "file"), ("memory.limit_in_bytes", "total_cache")):
        try:
            allowed = int((folder / limit).read_text())
            lines = (folder / "memory.stat").read_text().splitlines()
            current = "memory.current" if limit == "memory.max" else "memory.usage_in_bytes"
            used = int((folder / current).read_text())
        except (OSError, ValueError):  # no such file, or "max"
            continue
        cached = sum(int(line.split()[1]) for line in lines if line.split()[0] == cache)
        return allowed - used + cached
    return None


def _kilobytes(path: Path, key: str) -> int | None:
    """Returns a line of /proc in bytes, or None where there is none."""
    lines = path.read_text().splitlines() if path.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(key)), None)


def peak_memory_bytes(device: torch.device) -> int:
    """Returns the peak of allocated GPU memory, or of this process's resident memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    # getrusage would count the parent's memory before exec, too.
    highest = _kilobytes(Path("/proc/self/status"), "VmHWM")
    if highest is not None:
        return highest
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
