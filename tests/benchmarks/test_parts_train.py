"""The numbers in docs/research/scaling.md are those of the rows; a process can be started alone."""

import json
import sys
from pathlib import Path

from benchmarks import parts_train
from benchmarks.rows import read
from graphcl.tabular.build import build_store
from tests.conftest import random_graph

ROOT = Path(__file__).parents[2]
ROWS = ROOT / "benchmarks/results/parts_train.jsonl"


def found(order, *, cached):
    rows = [row for row in read(ROWS) if row.get("order") == order]
    return next(row for row in rows if bool(row["cache_bytes"]) == cached)


def least_work(case):
    return min(row["cpu_seconds_per_step"] for row in read(ROWS) if row["case"] == case)


def test_the_page_has_the_numbers_of_the_rows():
    page = (ROOT / "docs/research/scaling.md").read_text()
    for order in ("neighbours", "hash"):
        plain, cached = found(order, cached=False), found(order, cached=True)
        worst = max(plain["loss_difference"], cached["loss_difference"])
        assert worst <= 1e-5
        line = (
            f"| `{order}` | {100 * plain['cut_share']:.0f} % | {plain['rows_needed']:,.0f} "
            f"| {plain['sent_bytes'] / 1e6:.1f} MB | {cached['sent_bytes'] / 1e6:.1f} MB "
            f"| {100 * cached['cache_hits']:.0f} % | {worst:.0e} |"
        )
        assert line in page
    part, store = least_work("one part"), least_work("one store")
    assert part <= 1.05 * store
    assert (
        f"takes {part:.3f} s of CPU time per step, and the same graph as a store {store:.3f} s"
        in page
    )


def test_a_process_of_one_part_and_one_of_a_store_measure_the_same_losses(tmp_path, monkeypatch):
    random_graph(num_nodes=90).save(tmp_path / "store")
    build_store(tmp_path / "store", out=tmp_path / "one", parts=1, order="as-is")
    monkeypatch.setenv("WORLD_SIZE", "1")
    losses = {}
    for name, more in {"store": ["--whole"], "one": []}.items():
        file = tmp_path / f"{name}.json"
        options = ["--steps", "4", "--dim", "16", "--batch-nodes", "32", "--row", str(file)]
        command = ["parts_train", "--worker", str(tmp_path / name), *options, *more]
        monkeypatch.setattr(sys, "argv", command)
        parts_train.main()
        about = json.loads(file.read_text())
        assert about["steps"] == 4
        losses[name] = about["losses"]
    assert max(abs(a - b) for a, b in zip(*losses.values(), strict=True)) < 1e-5
