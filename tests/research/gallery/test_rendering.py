import csv
import io

import pytest

from graphcl.research.gallery import rendering
from graphcl.research.gallery.summary import summarise_rows
from tests.research.gallery.test_summary import ROWS, failed, row


@pytest.fixture
def summary():
    more = [row("c_d", "raw", 0.125, metric="roc_auc"), failed("c_d", "ours")]
    return summarise_rows([*ROWS, *more, row("c_d", "theirs", 0.25, metric="roc_auc")], ["ours"])


def test_markdown_has_every_score_the_best_in_bold_and_every_failure(summary):
    text = rendering.markdown(summary, picture="x.png")
    assert text.startswith("![Score per graph and system](x.png)\n\n| Graph | Score | ours | raw |")
    assert "| a | accuracy | **80.0 ± 14.1** | **80.0** | 70.0 |" in text
    assert "| c_d | ROC-AUC | failed | 12.5 | **25.0** |" in text
    assert "| Mean | | 64.0 | 65.0 | 70.0 |" in text
    assert "| Mean distance to the best | | 11.0 | 10.0 | 5.0 |" in text
    assert "| Graphs over a point below raw features | | 1 | – | 1 |" in text
    assert "over the 2 graphs that every system was scored on" in text
    assert "ours on c_d: 1 of 1 run failed (no luck)." in text


def test_latex_escapes_names(summary):
    text = rendering.latex(summary)
    assert r"c\_d & ROC-AUC & failed & 12.5 & \textbf{25.0} \\" in text
    assert r"\textbf{80.0 $\pm$ 14.1}" in text
    assert text.count(r"\midrule") == 2
    assert r"\begin{tabular}{llrrr}" in text


def test_csv_is_unrounded(summary):
    lines = list(csv.DictReader(io.StringIO(rendering.csv(summary))))
    assert len(lines) == 9
    (one,) = (line for line in lines if (line["graph"], line["system"]) == ("b", "ours"))
    assert (float(one["mean"]), one["std"]) == (0.48, "")


def test_the_terminal_shows_both_tables(summary):
    text = rendering.terminal(summary)
    assert "2 graphs that every system was scored on" in text
    assert "80.0 ± 14.1" in text
    assert "no luck" in text


def test_the_picture_has_a_point_per_score_and_a_bar_per_system(summary):
    left, right = rendering.draw(summary).axes
    assert sum(len(points.get_offsets()) for points in left.collections) == 8
    assert [label.get_text() for label in left.get_yticklabels()] == ["c_d", "b", "a"]
    assert [label.get_text() for label in right.get_yticklabels()] == ["ours", "raw", "theirs"]
    assert [bar.get_width() for bar in right.patches] == pytest.approx([11, 10, 5])


def test_all_failed_is_a_table_too():
    text = rendering.markdown(summarise_rows([failed("a", "x")]))
    assert "| a | – | failed |" in text
    assert "Mean" not in text.split("\n\n")[0]


def test_the_footnote_counts_the_runs():
    def first(*seeds):
        return rendering.footnotes(summarise_rows([row("a", "x", 0.5, seed) for seed in seeds]))[0]

    assert "mean over runs (1 run)," in first(0)
    assert "mean over runs (3 runs)," in first(0, 1, 2)
