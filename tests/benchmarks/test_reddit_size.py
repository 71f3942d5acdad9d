"""Systems at Reddit's size: a small share of it, measured and said on the page."""

import json
import sys

from benchmarks import reddit_size
from benchmarks.rows import read


def test_a_small_share_is_measured(tmp_path, monkeypatch, capsys):
    out = tmp_path / "rows.jsonl"
    monkeypatch.setattr(reddit_size, "EDGES", 6_000_000)
    asked = ["--share", "0.003", "--methods", "fastgcn", "--device", "cpu", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["reddit_size", *asked])
    reddit_size.main()
    (row,) = [json.loads(line) for line in out.read_text().splitlines()]
    assert (row["method"], row["nodes_of_graph"], row["directed_edges"]) == ("fastgcn", 699, 36_000)
    assert row["settings"]["inductive"]
    assert row["micro_f1"] > row["majority"]
    assert f"| FastGCN | 699 | 36,000 | {row['micro_f1']:.3f} |" in capsys.readouterr().out


def test_the_page_has_the_committed_rows():
    rows = read(reddit_size.RESULTS)
    assert {row["method"] for row in rows} >= {"fastgcn"}
    assert reddit_size.section([]) == ""
