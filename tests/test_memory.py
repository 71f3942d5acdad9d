"""Free memory: the minimum over the machine, the control group and the process's limits."""

import re
import resource
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from graphcl import memory


@pytest.mark.parametrize(("limit", "used"), [("RLIMIT_DATA", "VmData"), ("RLIMIT_AS", "VmSize")])
def test_a_limit_of_the_process_counts(limit, used):
    kind = getattr(resource, limit)
    before = resource.getrlimit(kind)
    (held,) = re.findall(rf"{used}:\s*(\d+) kB", Path("/proc/self/status").read_text())
    resource.setrlimit(kind, (int(held) * 1024 + 2**28, before[1]))
    try:
        assert 2**27 < memory.free_memory_bytes() <= 2**28
    finally:
        resource.setrlimit(kind, before)


def test_what_is_free_and_held(monkeypatch):
    (free,) = re.findall(r"MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text())
    monkeypatch.setattr(memory, "_limits_left", lambda: ())
    assert memory.free_memory_bytes() == pytest.approx(int(free) * 1024, rel=0.2)
    held, peak = memory.resident_bytes(), memory.peak_resident_bytes()
    many = np.ones(2**26, np.uint8)
    assert memory.resident_bytes() > held + 2**25
    del many
    assert memory.peak_resident_bytes() >= max(peak, held + 2**25)


@pytest.mark.parametrize("peak", [7 * 2**20, None])
def test_a_system_that_is_not_linux(monkeypatch, peak):
    """Windows keeps a peak; where none is kept it is what is held now."""
    about = SimpleNamespace(rss=5 * 2**20) if peak is None else None
    about = about or SimpleNamespace(rss=5 * 2**20, peak_wset=peak)
    monkeypatch.setattr(memory, "Path", lambda name: Path("/nowhere", name.lstrip("/")))
    monkeypatch.setattr(memory, "control_groups", lambda: ())
    monkeypatch.delattr(psutil.Process, "rlimit")
    monkeypatch.setattr(psutil.Process, "memory_info", lambda _: about)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=2**30))
    assert memory.free_memory_bytes() == 2**30
    assert memory.resident_bytes() == 5 * 2**20
    assert memory.peak_resident_bytes() == (peak or 5 * 2**20)


def test_control_groups(tmp_path):
    own = tmp_path / "slice" / "job"
    own.mkdir(parents=True)
    (tmp_path / "me").write_text("0::/slice/job\n")
    folders = list(memory.control_groups(tmp_path, tmp_path / "me"))
    assert folders == [own, own.parent, tmp_path]
    assert memory._control_group_left(own) is None
    (own / "memory.max").write_text("max\n")
    assert memory._control_group_left(own) is None
    (own / "memory.max").write_text("1000\n")
    (own / "memory.current").write_text("700\n")
    (own / "memory.stat").write_text("anon 400\nfile 300\nfile_mapped 5\n")
    assert memory._control_group_left(own) == 600


def testcontrol_groups_of_version_1(tmp_path):
    own = tmp_path / "memory" / "job"
    own.mkdir(parents=True)
    (tmp_path / "me").write_text("5:cpu:/other\n4:memory:/job\n")
    assert next(iter(memory.control_groups(tmp_path, tmp_path / "me"))) == own
    (own / "memory.limit_in_bytes").write_text("5000")
    (own / "memory.usage_in_bytes").write_text("3000")
    (own / "memory.stat").write_text("cache 1\ntotal_cache 2000\n")
    assert memory._control_group_left(own) == 4000
