"""What columns that are not numbers become: categories, dates, durations, times, texts, vectors."""

import datetime as dt
import math
from pathlib import Path

import numpy as np
import polars
import pyarrow
import pyarrow.parquet
import pytest
import scipy.sparse
from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer

from graphcl.errors import GraphError, TableError
from graphcl.tabular.build import load_tables
from graphcl.tabular.kinds import WORDS, YEAR, fit_text, leading_axes, text_features
from graphcl.tabular.options import TableOptions
from tests.tabular.conftest import write

MOMENTS = [dt.datetime(2020, 1, 6, 6), dt.datetime(2021, 7, 1), None, dt.datetime(2019, 12, 31, 18)]


@pytest.fixture(autouse=True)
def _edges():
    write("e.csv", "source,target\n0,1\n")


def read(nodes, **options):
    return load_tables("e.csv", TableOptions(nodes=nodes, **options))


def csv(*rows):
    write("n.csv", "\n".join(rows) + "\n")
    return "n.csv"


def circle(seconds, period):
    angle = 2 * math.pi * (seconds % period) / period
    return [math.sin(angle), math.cos(angle)]


def features_of(moment, first, mean):
    """The features of a date by its definition."""
    if moment is None:
        return [(mean - first) / YEAR, 0, 0, 0, 0, 0, 0]
    seconds = moment.replace(tzinfo=dt.UTC).timestamp()
    periods = (YEAR, 7 * 86400, 86400)
    return [(seconds - first) / YEAR, *(one for p in periods for one in circle(seconds, p))]


@pytest.mark.parametrize("typed", [False, True])
def test_dates_are_years_and_places_on_circles(typed):
    known = [one.replace(tzinfo=dt.UTC).timestamp() for one in MOMENTS if one]
    if typed:
        table = pyarrow.table({"id": [0, 1, 2, 3], "when": MOMENTS})
        pyarrow.parquet.write_table(table, "n.parquet")
        nodes = "n.parquet"
    else:
        nodes = csv("id,when", *(f"{n},{one or ''}" for n, one in enumerate(MOMENTS)))
    graph, report = read(nodes, missing="mean")
    mean = sum(known) / len(known)
    expected = [features_of(one, min(known), mean) for one in MOMENTS]
    np.testing.assert_allclose(graph.x, expected, atol=1e-5)
    assert [fate.features for fate in report.fates] == [0, 7]


def test_days_have_no_clock_and_other_ways_to_write_them_are_read():
    graph, report = read(csv("id,day", "0,2020-01-06", "1,2020-01-13"))
    assert report.column_features == [
        "day",
        *(f"day ({p}, {w})" for p in ("year", "week") for w in ("sin", "cos")),
    ]
    np.testing.assert_allclose(graph.x[0, 3:], graph.x[1, 3:], atol=1e-6)  # both are Mondays
    other, _ = read(csv("id,day", "0,06.01.2020", "1,13.01.2020"))
    assert np.array_equal(graph.x, other.x)


def test_durations_are_days_and_times_of_day_are_left_out_when_told():
    graph, _ = read(csv("id,took", "0,36:00", "1,12:30:00"))
    np.testing.assert_allclose(graph.x[:, 0], [1.5, 12.5 / 24])
    graph, _ = read(csv("id,took", "0,3 days", "1,2 hours"))
    np.testing.assert_allclose(graph.x[:, 0], [3, 2 / 24])
    table = pyarrow.table({"id": [0, 1], "at": [dt.time(6), dt.time(18)]})
    pyarrow.parquet.write_table(table, "n.parquet")
    with pytest.raises(TableError, match=r"'at' is TIME; leave the column out with") as error:
        read("n.parquet")
    assert error.value.fix == (("ignore", "at"),)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_durations_are_days_in_whatever_way_they_come(unit):
    took = pyarrow.array([dt.timedelta(3), None, -dt.timedelta(hours=2)], pyarrow.duration(unit))
    table = pyarrow.table({"id": [0, 1, 2], "took": took, "n": [1, 2, 3]})
    Path("folder").mkdir()
    pyarrow.parquet.write_table(table, "n.parquet")
    pyarrow.parquet.write_table(table, "folder/n.parquet")
    polars.from_arrow(table).write_parquet("p.parquet")
    several = [table, table.to_pandas(), polars.from_arrow(table), "folder", "p.parquet"]
    trained, _ = read("n.parquet", missing="mean")
    np.testing.assert_allclose(trained.x[:, 0], [3, (3 - 1 / 12) / 2, -1 / 12])
    for nodes in several:
        assert np.array_equal(read(nodes, missing="mean")[0].x, trained.x)
        assert np.array_equal(read(nodes, preparation=trained.preparation)[0].x, trained.x)


def test_vectors_are_their_numbers():
    vectors = [[1.0, 2.0], None, [3.0, 4.0]]
    pyarrow.parquet.write_table(pyarrow.table({"id": [0, 1, 2], "v": vectors}), "n.parquet")
    graph, report = read("n.parquet")
    assert graph.x.tolist() == [[1, 2], [0, 0], [3, 4]]
    assert report.column_features == ["v[0]", "v[1]"]
    holes = pyarrow.table({"id": [0, 1], "v": [[1.0, 2.0], [3.0, None]]})
    with pytest.raises(GraphError, match="row 2, column 'v': a value is no finite float32"):
        read(holes)


def test_lists_that_are_no_vectors_are_named():
    for column in ([[[1.0]], [[2.0]]], [[{"a": 1}], [{"a": 2}]]):
        pyarrow.parquet.write_table(pyarrow.table({"id": [0, 1], "v": column}), "n.parquet")
        with pytest.raises(
            TableError, match=r"column 'v' is .*; leave the column out with"
        ) as error:
            read("n.parquet")
        assert error.value.fix == (("ignore", "v"),)


def test_a_text_may_name_its_time_zone():
    said = ["10:00:00+02:00", "08:00", "08:00:00Z", "09:00 Europe/Oslo", "04:30:00.0-0330"]
    rows = [f"{place},2020-01-01 {one}" for place, one in enumerate([*said, "00:00"])]
    graph, _ = read(csv("id,when", *rows))
    np.testing.assert_allclose(graph.x[:, 0] * YEAR, [28_800] * 5 + [0], rtol=1e-5)
    with pytest.raises(TableError, match="'2020-01-02 10:00 PM' is not a date"):
        read(csv("id,when", "0,2020-01-01", "1,2020-01-02 10:00 PM"), date=("when",))


def test_types_that_duckdb_has_not_are_read_or_refused():
    half = pyarrow.table({"id": [0, 1], "f": np.array([1.5, 2], np.float16)})
    assert read(half)[0].x.tolist() == [[1.5], [2]]
    lists = pyarrow.array([[1.5], [2]], pyarrow.list_(pyarrow.float16()))
    with pytest.raises(GraphError, match=r"nodes_given: .*Unsupported Internal Arrow Type"):
        read(pyarrow.table({"id": [0, 1], "f": lists}))
    uuids = pyarrow.array([bytes(16), bytes(range(16))], pyarrow.uuid())
    with pytest.raises(TableError, match="column 'u' is text"):
        read(pyarrow.table({"id": [0, 1], "u": uuids}))


def test_nanoseconds_with_a_time_zone():
    times = pyarrow.array([0, 86_400 * 10**9], pyarrow.timestamp("ns", "Europe/Oslo"))
    pyarrow.parquet.write_table(pyarrow.table({"id": [0, 1], "t": times}), "n.parquet")
    assert np.allclose(read("n.parquet")[0].x[:, 0], [0, 1 / 365.2425])


def test_text_with_few_values_is_a_category_and_other_text_is_not():
    rows = [f"{n},{'ab'[n % 2]}" for n in range(6)]
    graph, _ = read(csv("id,c", *rows))
    assert graph.x.tolist() == [[1, 0], [0, 1]] * 3
    with pytest.raises(TableError, match="column 'c' is text") as error:
        read(csv("id,c", *(f"{n},code{n}" for n in range(6))))
    assert error.value.fix == (("ignore", "c"),)
    with pytest.raises(TableError, match=r"read it with text=\['c'\]") as error:
        read(csv("id,c", *(f"{n},the text of row {10 + n}" for n in range(6))))
    assert error.value.fix == (("text", "c"),)
    graph, report = read("n.csv", text="c")
    assert report.fates[1].features == graph.num_features > 1


def test_everything_wrong_is_said_at_once_and_strictness_guesses_nothing():
    nodes = csv(
        "id,age,day,town,bio,void,split",
        "0,30,2020-01-06,a,some words about one,,train",
        "1,,2020-01-07,b,other words about two,,test",
        "2,3o,2020-01-08,a,more words about three,,train",
        "3,31,2020-01-09,b,last words about four,,train",
    )
    with pytest.raises(TableError) as error:
        read(nodes)
    assert len(error.value.problems) == 3  # split, typing error, text
    with pytest.raises(TableError) as error:
        read(nodes, strict=True, split="split", ignore=("age",))
    said = "\n".join(error.value.problems)
    for word in ("date=['day']", "one_hot=['town']", "text=['bio']", "ignore=['void']"):
        assert word in said
    given = {"date": "day", "one_hot": "town", "text": "bio", "ignore": ("age", "void")}
    graph, _ = read(nodes, strict=True, split="split", **given)
    assert graph.num_nodes == 4


def test_a_message_lists_a_bounded_number_of_problems():
    text = str(TableError([f"problem {n}" for n in range(500)]))
    assert text.startswith("500 problems:")
    assert text.endswith("… and 470 more")
    assert len(text.splitlines()) == 32


TEXTS = [
    "the sea at night",
    "the hills and the sea",
    "dogs walk in the hills",
    "code and graphs at night",
    None,
    "graphs of dogs",
]


def test_the_weights_are_scikit_learns_and_the_axes_are_orthogonal():
    idf, axes = fit_text(TEXTS, len(TEXTS))
    hashing = HashingVectorizer(
        n_features=WORDS, alternate_sign=False, norm=None, ngram_range=(1, 2)
    )
    counts = hashing.transform([text or "" for text in TEXTS])
    witness = TfidfTransformer(sublinear_tf=True)
    weighted = witness.fit_transform(counts)
    np.testing.assert_allclose(idf, witness.idf_, rtol=1e-6)
    np.testing.assert_allclose(axes @ axes.T, np.eye(len(axes)), atol=1e-5)
    found = text_features(TEXTS, idf, axes)
    np.testing.assert_allclose(found, weighted @ axes.T, atol=1e-5)
    assert not found[4].any()
    # The axes keep what they can: the Gram matrix of the texts has rank 5.
    np.testing.assert_allclose(found @ found.T, (weighted @ weighted.T).toarray(), atol=1e-4)


def test_few_texts_have_few_features():
    assert fit_text(["word", "word"], 2)[1].shape == (1, WORDS)
    assert len(fit_text(["one text here"], 1)[1]) == 1


def test_equal_texts_give_the_same_bits_and_no_axis_that_no_text_has():
    """More axes than the texts have directions, some of them of equal length."""
    given = [f"{('a b c', 'd e f', 'g h i')[n % 3]} n{n % 20}" for n in range(60)]
    found = [fit_text(given, len(given)) for _ in range(3)]
    for idf, axes in found[1:]:
        assert np.array_equal(idf, found[0][0])
        assert np.array_equal(axes, found[0][1])
    features = text_features(given, *found[0])
    assert features.shape[1] < 59
    assert (np.abs(features).max(axis=0) > 1e-3).all()


@pytest.mark.parametrize("wide", [True, False])
def test_axes_are_those_of_numpy(wide):
    random = np.random.default_rng(0)
    shape = (40, 300) if wide else (300, 40)
    rows = scipy.sparse.random_array(shape, density=0.2, rng=random, format="csr")
    found = leading_axes(rows, 7)
    expected = np.linalg.svd(rows.toarray())[2][:7]
    np.testing.assert_allclose(np.abs(np.diag(found @ expected.T)), 1, atol=1e-6)
    assert (found[np.arange(7), np.abs(found).argmax(axis=1)] > 0).all()
    np.testing.assert_array_equal(found, leading_axes(rows, 7))
