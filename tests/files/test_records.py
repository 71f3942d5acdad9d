import csv
import json
import sys

import numpy as np
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import graphcl
from graphcl.answers.linking import LinkEvaluation
from graphcl.errors import MissingExtraError, RunError
from graphcl.evaluation.links import rank_edges
from graphcl.files import records as module
from graphcl.files.records import check_records_file, read_pairs, records, write_records

TABLE = {
    "id": np.array(["a", "Zoë", "x,y\n"], dtype=object),
    "label": ["Art", None, 'q"'],
    "probability": np.array([0.1, 1.0, 1e-9], np.float32),
    "rank": np.array([3, 1, 2]),
    "labels": [["a", "b"], [], ["c"]],
}


def rows():
    return [
        dict(zip(TABLE, row, strict=True)) for row in zip(*map(list, TABLE.values()), strict=True)
    ]


def test_json_and_parquet_hold_every_value(tmp_path):
    write_records(tmp_path / "t.json", TABLE)
    write_records(tmp_path / "t.parquet", TABLE)
    as_json = json.loads((tmp_path / "t.json").read_text())
    as_parquet = pyarrow.parquet.read_table(tmp_path / "t.parquet")
    for found in (as_json, as_parquet.to_pylist()):
        for one, expected in zip(found, rows(), strict=True):
            assert one["id"] == expected["id"]
            assert one["label"] == expected["label"]
            assert np.float32(one["probability"]) == expected["probability"]
            assert one["rank"] == expected["rank"]
            assert one["labels"] == expected["labels"]
    assert as_parquet.schema.field("probability").type == "float"
    assert as_json == records(TABLE)


def test_csv(tmp_path):
    write_records(tmp_path / "t.csv", TABLE)
    with (tmp_path / "t.csv").open(newline="", encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    assert [row["id"] for row in found] == TABLE["id"].tolist()
    assert [row["label"] for row in found] == ["Art", "", 'q"']
    assert [np.float32(row["probability"]) for row in found] == TABLE["probability"].tolist()
    assert [row["labels"] for row in found] == ["a|b", "", "c"]


@pytest.mark.parametrize("suffix", [".csv", ".json", ".parquet"])
def test_many_rows_in_blocks_and_none_at_all(tmp_path, suffix, monkeypatch):
    monkeypatch.setattr(module, "_ROWS", 7)
    path = tmp_path / f"t{suffix}"
    write_records(path, {"id": np.arange(20), "label": [str(n) for n in range(20)]})
    if suffix != ".json":
        assert read_pairs(path, ("id", "label"), RunError) == [(str(n), str(n)) for n in range(20)]
    else:
        assert [row["id"] for row in json.loads(path.read_text())] == list(range(20))
    write_records(path, {"id": np.arange(0), "label": []})
    if suffix != ".json":
        assert read_pairs(path, ("id", "label"), RunError) == []
    else:
        assert json.loads(path.read_text()) == []


def test_ids_of_several_types_are_text_in_parquet(tmp_path):
    write_records(tmp_path / "t.parquet", {"id": np.array([1, "a"], dtype=object)})
    table = pyarrow.parquet.read_table(tmp_path / "t.parquet")
    assert table.column("id").to_pylist() == ["1", "a"]
    write_records(tmp_path / "lists.parquet", {"id": [1, 2, 3], "label": [[7, 9], [], None]})
    lists = pyarrow.parquet.read_table(tmp_path / "lists.parquet").column("label")
    assert lists.to_pylist() == [["7", "9"], [], None]


def test_names_that_cannot_be_written(tmp_path):
    with pytest.raises(RunError, match=r"must end in \.parquet, \.csv or \.json"):
        check_records_file(tmp_path / "t.txt", RunError, overwrite=False)
    (tmp_path / "t.csv").touch()
    with pytest.raises(RunError, match="already exists"):
        check_records_file(tmp_path / "t.csv", RunError, overwrite=False)
    check_records_file(tmp_path / "t.csv", RunError, overwrite=True)


def test_pairs_are_found_by_name_or_else_taken_in_order(tmp_path):
    (tmp_path / "a.csv").write_text("note,label,id\nx,Art,1\ny,,2\nz,Law,3\n")
    assert read_pairs(tmp_path / "a.csv", ("id", "label"), RunError) == [("1", "Art"), ("3", "Law")]
    (tmp_path / "b.tsv").write_text("name\ttopic\nAda\tMaths\n")
    assert read_pairs(tmp_path / "b.tsv", ("id", "label"), RunError) == [("Ada", "Maths")]


def test_an_id_names_no_column(tmp_path):
    (tmp_path / "a.csv").write_text("Ada,Maths\nBob,Art\n")
    with pytest.raises(RunError, match="must name the columns, id and label; found 'Ada'"):
        read_pairs(tmp_path / "a.csv", ("id", "label"), RunError, {"Ada", "Bob"}.__contains__)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"", "is empty"),
        ("a.csv", b"id\n1\n", "needs two columns"),
        ("a.csv", b"who,what,when\n1,2,3\n", "needs the columns id and label; found 'who', 'what'"),
        ("a.csv", b"0,Art\n8,Law\n", "must name the columns, id and label; found '0' and 'Art'"),
        ("a.csv", b"id,label\n1\n", "line 2 has 1 cells; the header 2"),
        ("a.csv", b"id,label\n\xff\xfe,1\n", "not a table in UTF-8"),
        ("a.csv", b'id,label\n"1,2\n', "not a table in UTF-8"),
        ("a.parquet", b"PAR1 nonsense", "not a readable .parquet"),
        ("a.xlsx", b"", "must end in .csv, .tsv or .parquet"),
    ],
)
def test_damaged_tables(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(RunError, match=message):
        read_pairs(tmp_path / name, ("id", "label"), RunError)
    with pytest.raises(RunError, match="no such file"):
        read_pairs(tmp_path / "absent.csv", ("id", "label"), RunError)


@settings(deadline=None, max_examples=30)
@given(
    pairs=st.lists(
        st.tuples(*[st.text(st.characters(exclude_categories=["Cs"]), min_size=1)] * 2), min_size=1
    )
)
def test_any_text_comes_back(tmp_path_factory, pairs):
    folder = tmp_path_factory.mktemp("pairs")
    for suffix in (".csv", ".parquet"):
        write_records(
            folder / f"t{suffix}", {"id": [a for a, _ in pairs], "label": [b for _, b in pairs]}
        )
        assert read_pairs(folder / f"t{suffix}", ("id", "label"), RunError) == pairs


def test_answers_are_a_few_lines_a_data_frame_and_a_table_in_a_notebook(monkeypatch):
    z = np.random.default_rng(0).normal(size=(400, 3)).astype(np.float32)
    names = np.where(z[:, 0] > 0, "<cat>", "bird").astype(object)
    names[:300] = None
    graph = graphcl.Graph.from_edge_index(
        [[0, 1], [1, 2]], z, node_ids=[f"n{i}" for i in range(400)]
    )
    answers = {
        "Predictions": graphcl.predict(z, graph, names),
        "Groups": graphcl.cluster(z, 3, graph=graph),
        "Neighbours": graphcl.neighbors(z, ["n0", "n1"], 20, graph=graph),
        "Links": graphcl.links(z, graph=graph, k=30),
        "LinkEvaluation": LinkEvaluation(
            {"embeddings": rank_edges(np.ones(1), np.zeros((1, 2)))}, 1, 1, 0.1, 0
        ),
    }
    for name, answer in answers.items():
        shown, columns = repr(answer), answer.columns()
        assert shown.startswith(f"{name}: ")
        assert shown.startswith(answer.title())
        assert len(shown.splitlines()) <= 8, name
        assert shown.splitlines()[1].split() == list(columns)
        frame = answer.to_pandas()
        assert list(frame.columns) == list(columns)
        assert len(frame) == len(next(iter(columns.values())))
        page = answer._repr_html_()
        assert page.count("<tr>") <= 7
        assert "<cat>" not in page
    probe = graphcl.linear_probe(z, names)
    assert probe.to_pandas()["accuracy"].tolist() == [probe.accuracy]
    assert f"<td>{probe.accuracy:.4g}</td>" in probe._repr_html_()
    title, first, *rest = repr(probe).splitlines()
    assert (title, first.split()) == ("ProbeResult", ["accuracy", f"{probe.accuracy:.4g}"])
    assert len(rest) == len(probe.columns()) - 1
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match=r"Links.to_pandas needs .*graphcl\[pandas\]"):
        answers["Links"].to_pandas()
