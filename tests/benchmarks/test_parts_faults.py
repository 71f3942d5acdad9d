"""The numbers in docs/research/scaling.md are those of the rows: the same weights, always."""

from pathlib import Path

import pytest

from benchmarks.parts_faults import PARTS, PATIENCE, RESULTS, Training, table
from benchmarks.rows import read
from graphcl.store.reader import open_part

ROOT = Path(__file__).parents[2]


def test_the_page_has_the_numbers_of_the_rows():
    rows = list(read(RESULTS))
    assert "\n".join(table(rows)) in (ROOT / "docs/research/scaling.md").read_text(), (
        "print it with --table"
    )


def test_no_fault_changed_the_weights():
    rows = list(read(RESULTS))
    ended = [row for row in rows if row["weights"] is None]
    assert all(row["equal"] for row in rows if row not in ended)
    # Where torchrun itself is killed, nobody starts it again.
    assert all((row["case"], row["launcher"]) == ("kill", "torchrun") for row in ended)
    whole = [row for row in rows if row not in ended]
    for launcher, least in (("host", 20), ("torchrun", 1)):
        killed = [row for row in whole if row["case"] == "kill" and row["launcher"] == launcher]
        assert sum(row["kills"] for row in killed) >= least
    by_case = {row["case"]: row for row in rows}
    for case in ("down:5", "stop:10", "slow"):  # nothing ended, nothing started again
        assert (by_case[case]["code"], by_case[case]["attempts"]) == ([0] * PARTS, 1)
    silent = by_case["silent"]
    assert silent["code"] == [1] * PARTS
    assert PATIENCE <= silent["after_seconds"] < PATIENCE + 10
    for line in silent["said"]:
        assert f"another process was silent for {PATIENCE} s (--timeout)" in line


def test_each_host_has_a_disk_with_its_own_part_alone(tmp_path):
    training = Training(tmp_path, nodes=400, epochs=1)
    training.prepare()
    for rank in range(PARTS):
        disk = tmp_path / f"disk-{rank}/parts"
        assert sorted(path.name for path in disk.iterdir()) == [f"part-0000{rank}", "store.json"]
        open_part(disk, rank).check()
        (tmp_path / f"disk-{rank}/run.partial").mkdir()
    training.clear()
    assert not list(tmp_path.glob("disk-*/run*"))


@pytest.mark.parametrize("launcher", ["host", "torchrun"])
def test_the_command_of_a_host(tmp_path, launcher):
    *_, script, name, program = Training(tmp_path, 400, 7).words(launcher, 30)[:7]
    words = Training(tmp_path, 400, 7).words(launcher, 30)
    assert ("torch.distributed.run" in script) == (launcher == "torchrun")
    assert f'mount --bind "{tmp_path}/disk-$RANK" "{tmp_path}/disk"' in script
    assert (name, program) == ("host", "graphcl")
    assert words[-1] == "epochs=7"
    assert words[words.index("--timeout") + 1] == "30"
