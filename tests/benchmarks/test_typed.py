import json

import numpy as np
import torch

from benchmarks.typed import GENERATED, SYSTEMS, judge, load, main, splits
from benchmarks.typed_systems import EMBEDDINGS, supervised

CPU = torch.device("cpu")


def test_the_probe_reads_test_nodes_only_if_told(monkeypatch):
    monkeypatch.setattr("benchmarks.typed.NODES", 200)
    graph = load(next(iter(GENERATED)))
    nodes = graph.nodes[graph.labelled_type]
    (split,) = splits(nodes)
    z = np.eye(2)[nodes.y] + np.random.default_rng(0).normal(size=(nodes.num_nodes, 2)) / 9
    found = judge(z, nodes.y, split, test_nodes=False, device=CPU)
    assert set(found) == {"val_macro_f1", "strength"}
    assert found["val_macro_f1"] == 1
    other = nodes.y.copy()
    other[split[3]] = 1 - other[split[3]]
    assert judge(z, other, split, test_nodes=False, device=CPU) == found
    assert judge(z, other, split, test_nodes=True, device=CPU)["macro_f1"] == 0


def test_training_nodes_give_validation_nodes_where_there_are_none():
    graph = load("relation")
    from dataclasses import replace

    nodes = replace(graph.nodes["user"], val_mask=None)
    ((name, train, val, _),) = splits(nodes)
    assert name == "given, validation drawn"
    together = np.sort(np.concatenate([train, val]))
    assert np.array_equal(together, np.flatnonzero(nodes.train_mask))
    assert abs(len(val) / len(together) - 0.2) < 0.01


def test_every_system_returns_rows_of_the_type_and_no_label_of_a_test_node_counts(monkeypatch):
    monkeypatch.setattr("benchmarks.typed.NODES", 100)
    graph = load("relation")
    for system in ("raw", "propagation"):
        z, _ = EMBEDDINGS[system](graph, "user", 0, CPU, {})
        assert len(z) == 50
    split = next(splits(graph.nodes["user"]))
    for kind in ("rgcn", "hgt"):
        scores = supervised(kind, graph, "user", split[1:3], 0, CPU, width=8, epochs=2)
        assert scores.shape == (50, 2)


def test_one_command_measures_every_system_and_does_nothing_twice(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("benchmarks.typed.NODES", 100)
    out = tmp_path / "rows.jsonl"
    words = ["typed", "--out", str(out), "--graphs", "direction", "--seeds", "1", "--test"]
    words += ["--device", "cpu", "--set", "steps=2", "dim=12"]
    monkeypatch.setattr("sys.argv", words)
    for _ in range(2):
        main()
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["system"] for row in rows] == list(SYSTEMS)
    assert not any("failed" in row for row in rows)
    assert all(0 <= row["macro_f1"] <= 1 for row in rows)
    monkeypatch.setattr("sys.argv", [*words, "--table"])
    capsys.readouterr()
    main()
    assert capsys.readouterr().out.count("| direction |") == len(SYSTEMS)
