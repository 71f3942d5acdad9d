import pytest

from graphcl.research.gallery.summary import summarise_rows


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
    cell = summary.cell("a", "ours")
    assert (cell.mean, cell.runs, cell.seconds) == (pytest.approx(0.8), 2, 2)
    assert cell.std == pytest.approx(0.1414, abs=1e-4)
    assert summary.cell("a", "raw").identical
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
    cell = summarise_rows(rows).cell("a", "x")
    assert (cell.mean, cell.runs, cell.failed) == (0.9, 1, 0)


def test_only_graphs_of_every_system_count_overall():
    summary = summarise_rows(
        [*ROWS, row("c", "raw", 0.1), failed("c", "ours"), row("c", "theirs", 1)]
    )
    assert summary.common == ("a", "b")
    assert summary.overall == summarise_rows(ROWS).overall[::1]
    cell = summary.cell("c", "ours")
    assert (cell.mean, cell.failed, cell.reason) == (None, 1, "no luck")


def test_without_raw_features_there_are_no_losses():
    assert summarise_rows([row("a", "x", 0.5)]).overall[0].losses is None


def test_nothing_in_common_is_nothing_overall():
    assert summarise_rows([row("a", "x", 0.5), failed("a", "y")]).overall == ()
