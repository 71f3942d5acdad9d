"""How much memory this process can still allocate, and its peak; without importing torch."""

import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path


def free_memory_bytes() -> int:
    """Returns the memory that this process can still allocate.

    This is the minimum of the machine's free memory, what its control group leaves (the limit of a
    container or a scheduler), and what its own limits leave (``ulimit -d`` and ``-v``).
    """
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    free = _proc_bytes(Path("/proc/meminfo"), "MemAvailable")
    return max(0, min([total if free is None else free, *_limits_left()]))


def peak_resident_bytes() -> int:
    """Returns the peak of this process's resident memory."""
    # getrusage would also count the parent's memory before exec.
    highest = _proc_bytes(Path("/proc/self/status"), "VmHWM")
    if highest is not None:
        return highest
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _limits_left() -> Iterator[int]:
    for limit, used in ((resource.RLIMIT_DATA, "VmData"), (resource.RLIMIT_AS, "VmSize")):
        allowed = resource.getrlimit(limit)[0]
        if allowed != resource.RLIM_INFINITY:
            yield allowed - (_proc_bytes(Path("/proc/self/status"), used) or 0)
    for folder in control_groups():
        left = _control_group_left(folder)
        if left is not None:
            yield left


def control_groups(
    root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")
) -> Iterator[Path]:
    """Yields the folders of this process's memory groups, from its own up to the root."""
    lines = membership.read_text().splitlines() if membership.exists() else []
    for line in lines:
        _, kinds, name = line.split(":", 2)
        if kinds == "" or "memory" in kinds.split(","):
            top = root if kinds == "" else root / "memory"
            own = top / name.lstrip("/")
            yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(top))


def _control_group_left(folder: Path) -> int | None:
    """Returns a group's limit minus its memory other than caches; None without a limit."""
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


def _proc_bytes(path: Path, key: str) -> int | None:
    """Returns the value of a line in kB of a file in /proc, in bytes; None without such a line."""
    lines = path.read_text().splitlines() if path.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(key)), None)
