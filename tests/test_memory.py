"""Free memory: the minimum over the machine, the control group and the process's limits."""

import resource

from graphcl import memory


def test_a_limit_of_the_process_counts():
    before = resource.getrlimit(resource.RLIMIT_DATA)
    used = memory._proc_bytes(memory.Path("/proc/self/status"), "VmData")
    resource.setrlimit(resource.RLIMIT_DATA, (used + 2**28, before[1]))
    try:
        assert 0 < memory.free_memory_bytes() <= 2**28
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


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
