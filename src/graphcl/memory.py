"""How much memory this process can still allocate, and its peak; without importing torch."""

import sys
from collections.abc import Iterator
from pathlib import Path

import psutil


def free_memory_bytes() -> int:
    """Returns the memory that this process can still allocate.

    This is the minimum of the machine's free memory, what its control group leaves (the limit of a
    container or a scheduler), and what its own limits leave (``ulimit -d`` and ``-v``).
    """
    return max(0, min([int(psutil.virtual_memory().available), *_limits_left()]))


def resident_bytes() -> int:
    """Returns the resident memory of this process."""
    return int(psutil.Process().memory_info().rss)


def peak_resident_bytes() -> int:
    """Returns the peak of this process's resident memory; what it is now where no peak is known."""
    # psutil lacks it on Linux, and getrusage would also count the parent's memory before exec.
    status = Path("/proc/self/status")
    for line in status.read_text().splitlines() if status.exists() else ():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    if sys.platform == "darwin":
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(getattr(psutil.Process().memory_info(), "peak_wset", resident_bytes()))  # Windows


def _limits_left() -> Iterator[int]:
    if hasattr(psutil.Process, "rlimit"):  # Windows and macOS have none that count
        used, allowed = psutil.Process().memory_info(), psutil.Process().rlimit
        for limit, held in ((psutil.RLIMIT_DATA, used.data), (psutil.RLIMIT_AS, used.vms)):
            if (soft := allowed(limit)[0]) != psutil.RLIM_INFINITY:
                yield soft - held
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
