import csv
import io
from dataclasses import asdict

import numpy as np
import pytest
import torch

from graphcl.errors import GraphCLError
from graphcl.research import comparison
from graphcl.research.comparison import compare, read_systems, summarise_rows
from graphcl.research.output import csv_text, latex_table
from tests.conftest import random_graph

CPU = torch.device("cpu")
SYSTEMS = "raw,random-encoder:dim=4"


def graphs(*names):
    return {name: lambda seed=seed: random_graph(seed) for seed, name in enumerate(names)}


def run(path, systems=SYSTEMS, names=("one", "two"), seeds=range(2), **options):
    chosen = read_systems([systems])
    return compare(graphs(*names), chosen, path, seeds=seeds, device=CPU, **options)


def test_systems_are_read_with_their_settings():
    one, two, three = read_systems(["graphcl:encoder=residual,layers=1, dgi", "grace:dim=4"])
    assert (one.label, one.name) == ("graphcl:encoder=residual,layers=1", "graphcl")
    assert one.changed == {"encoder": "residual", "layers": "1"}
    assert (two.label, two.changed) == ("dgi", {})
    assert three.changed == {"dim": "4"}
    assert [system.label for system in read_systems(["raw,raw", "raw"])] == ["raw"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dgy", "unknown method 'dgy'; known: graphcl, raw, .*did you mean 'dgi'"),
        ("dgi:dym=3", "dgi: unknown field 'dym'; did you mean 'dim'"),
        ("graphcl:layer=3", "layer"),
        ("dgi:dim", "a setting is KEY=VALUE; got 'dim' in 'dgi:dim'"),
        (
            "gcn",
            "compare: gcn learns from the labels of one split; others: graphcl, raw",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused(text, message):
    with pytest.raises(GraphCLError, match=message):
        read_systems([text])


def test_the_systems_that_can_be_compared_are_known():
    names = ["graphcl", "raw", "grace", "bgrl", "cca-ssg", "graphmae", "trees"]
    assert [system.name for system in read_systems(names)] == names
    with pytest.raises(GraphCLError, match=r"others: graphcl, raw, deepwalk, .*, trees$"):
        read_systems(["label-propagation"])


def test_every_graph_system_and_seed_has_a_row_and_a_deterministic_system_one(tmp_path):
    found = run(tmp_path / "rows.jsonl")
    keys = [(row["graph"], row["system"], row["seed"]) for row in found]
    assert keys == [
        ("one", "raw", 0),
        ("one", "random-encoder:dim=4", 0),
        ("two", "raw", 0),
        ("two", "random-encoder:dim=4", 0),
        ("one", "random-encoder:dim=4", 1),
        ("two", "random-encoder:dim=4", 1),
    ]
    for row in found:
        assert row["metric"] == "accuracy"
        assert row["score"] == np.mean(row["split_scores"])
        assert {"train_seconds", "probe_seconds", "device", "versions", "settings"} <= row.keys()
    assert found[1]["settings"]["dim"] == 4
    assert found[1]["score"] != found[4]["score"]


def test_every_regime_is_a_row_of_one_training(tmp_path):
    path = tmp_path / "rows.jsonl"
    found = run(path, "raw,trees,random-encoder:dim=4", ("one",), seeds=[0])
    assert [row.get("labels") for row in found] == [None] * 3
    more = run(path, "raw,trees,random-encoder:dim=4", ("one",), seeds=[0], labels=(6, 3))
    assert [(row["system"], row.get("labels")) for row in more] == [
        (system, count)
        for system in ("raw", "trees", "random-encoder:dim=4")
        for count in (None, 6, 3)
    ]
    assert len(path.read_text().splitlines()) == 9  # the splits are not scored again
    for row in more:
        expected = (1, "given") if "labels" not in row else (3, f"{row['labels']} a class")
        assert (row["splits"], row["split"]) == expected
        assert sum(row["chosen"].values()) == row["splits"]
        assert row["nodes"][0] == {None: 20, 6: 18, 3: 9}[row.get("labels")]
        assert row["train_seconds"] >= 0
    report = comparison.report_of(*comparison.regimes(more))
    assert "| Graph | Score | raw | trees |" in report.markdown
    assert "| 6 labels a class | Score |" in report.markdown
    assert report.markdown.index("| 6 labels") < report.markdown.index("| 3 labels")
    assert [line["labels"] for line in report.lines] == [None] * 3 + [6] * 3 + [3] * 3


def test_workers_change_no_score(tmp_path):
    systems = "raw,trees,random-encoder:dim=4,grace:dim=4,epochs=2"
    plain = run(tmp_path / "a.jsonl", systems, labels=(4,))
    beside = run(tmp_path / "b.jsonl", systems, labels=(4,), workers=2)
    assert [row["split_scores"] for row in plain] == [row["split_scores"] for row in beside]
    assert [row["graph"] for row in plain] == [row["graph"] for row in beside]


def test_a_graph_that_cannot_be_scored_is_a_failure_with_its_reason(tmp_path):
    loaders = {"blind": lambda: random_graph().replace(y=None)}
    path = tmp_path / "rows.jsonl"
    (row,) = compare(loaders, read_systems(["raw"]), path, seeds=[0], device=CPU)
    assert row["failed"] == "random: has no labels to score by"


def test_a_budget_leaves_the_rest_for_later(tmp_path):
    path = tmp_path / "rows.jsonl"
    assert len(run(path, budget=0.0)) == 1
    assert len(run(path)) == 6


def row(graph, system, score, seed=0, **more):
    scored = {"metric": "accuracy", "score": score, "train_seconds": 2.0}
    return {"graph": graph, "system": system, "seed": seed, **scored, **more}


def failed(graph, system, seed=0):
    return {"graph": graph, "system": system, "seed": seed, "failed": "no luck"}


ROWS = [
    row("b", "raw", 0.5, runs_identical=True),
    row("a", "raw", 0.8, runs_identical=True),
    row("a", "ours", 0.9),
    row("a", "ours", 0.7, seed=1),
    row("b", "ours", 0.48),
    row("b", "theirs", 0.7),
    row("a", "theirs", 0.7),
]


def test_means_distances_and_losses():
    summary = summarise_rows(ROWS, ["ours"])
    assert summary.graphs == ["a", "b"]
    assert summary.systems == ["ours", "raw", "theirs"]
    cell = summary.cells["a", "ours"]
    assert (cell.mean, cell.runs, cell.seconds) == (pytest.approx(0.8), 2, 2)
    assert cell.std == pytest.approx(0.1414, abs=1e-4)
    assert summary.cells["a", "raw"].identical
    ours, raw, theirs = summary.overall
    assert (ours.mean, ours.losses) == (pytest.approx(0.64), 1)
    assert ours.distance == pytest.approx((0 + 0.22) / 2)
    assert (raw.losses, theirs.losses) == (0, 1)
    assert theirs.distance == pytest.approx(0.05)


def test_a_point_below_is_no_loss_and_more_is():
    for score, losses in ((0.491, 0), (0.489, 1)):
        rows = [row("a", "raw", 0.5), row("a", "x", score)]
        assert summarise_rows(rows).overall[1].losses == losses


def test_a_repeated_run_counts_once_and_a_failure_gives_way():
    rows = [failed("a", "x"), row("a", "x", 0.1), row("a", "x", 0.9)]
    cell = summarise_rows(rows).cells["a", "x"]
    assert (cell.mean, cell.runs, cell.failed) == (0.9, 1, 0)


def test_only_graphs_of_every_system_count_overall():
    summary = summarise_rows(
        [*ROWS, row("c", "raw", 0.1), failed("c", "ours"), row("c", "theirs", 1)]
    )
    assert summary.common == ["a", "b"]
    assert summary.overall == summarise_rows(ROWS).overall
    cell = summary.cells["c", "ours"]
    assert (cell.mean, cell.failed, cell.reason) == (None, 1, "no luck")


def test_without_raw_features_there_are_no_losses():
    assert summarise_rows([row("a", "x", 0.5)]).overall[0].losses is None


def test_nothing_in_common_is_nothing_overall():
    assert summarise_rows([row("a", "x", 0.5), failed("a", "y")]).overall == []


@pytest.fixture
def summary():
    more = [row("c_d", "raw", 0.125, metric="roc_auc"), failed("c_d", "ours")]
    return summarise_rows([*ROWS, *more, row("c_d", "theirs", 0.25, metric="roc_auc")], ["ours"])


def test_markdown_has_every_score_the_best_in_bold_and_every_failure(summary):
    text = comparison.report_of(summary).markdown
    assert text.startswith("![compare](compare.png)\n\n| Graph | Score | ours | raw |")
    assert "| a | accuracy | **80.0 ± 14.1** | **80.0** | 70.0 |" in text
    assert "| c_d | ROC-AUC | failed | 12.5 | **25.0** |" in text
    assert "| Mean | | 64.0 | 65.0 | 70.0 |" in text
    assert "| Mean distance to the best | | 11.0 | 10.0 | 5.0 |" in text
    assert "| Graphs over a point below raw features | | 1 | – | 1 |" in text
    assert "over the 2 graphs that every system was scored on" in text
    assert "ours on c_d: 1 of 1 run failed (no luck)." in text


def test_latex_escapes_names(summary):
    text = latex_table(*comparison.table(summary))
    assert r"c\_d & ROC-AUC & failed & 12.5 & \textbf{25.0} \\" in text
    assert r"\textbf{80.0 $\pm$ 14.1}" in text
    assert text.count(r"\midrule") == 1
    assert r"\begin{tabular}{llrrr}" in text


def test_csv_is_unrounded(summary):
    written = csv_text([asdict(cell) for cell in summary.cells.values()])
    lines = list(csv.DictReader(io.StringIO(written)))
    assert len(lines) == 9
    (one,) = (line for line in lines if (line["graph"], line["system"]) == ("b", "ours"))
    assert (float(one["mean"]), one["std"]) == (0.48, "")


def test_the_terminal_shows_the_same_table(summary):
    text = comparison.report_of(summary).terminal()
    assert "2 graphs that every system was scored on" in text
    assert "80.0 ± 14.1" in text
    assert "**" not in text
    assert "no luck" in text


def test_the_picture_has_a_point_per_score_and_one_per_system(summary):
    left, right = comparison.draw(summary).axes
    assert sum(len(points.lines[0].get_xdata()) for points in left.containers) == 8
    assert [label.get_text() for label in left.get_yticklabels()] == ["a", "b", "c_d"]
    assert [label.get_text() for label in right.get_yticklabels()] == ["ours", "raw", "theirs"]
    distances = [float(points.lines[0].get_xdata()[0]) for points in right.containers]
    assert distances == pytest.approx([11, 10, 5])


def test_all_failed_is_a_table_too():
    text = comparison.report_of(summarise_rows([failed("a", "x")])).markdown
    assert "| a | – | failed |" in text
    assert "Mean" not in text.split("\n\n")[0]


def test_the_footnote_counts_the_runs():
    def first(*seeds):
        return comparison.footnotes(summarise_rows([row("a", "x", 0.5, seed) for seed in seeds]))[0]

    assert "mean over runs (1 run)," in first(0)
    assert "mean over runs (3 runs)," in first(0, 1, 2)
