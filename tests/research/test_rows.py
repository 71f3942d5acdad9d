import json

import pytest
import torch

from graphcl.errors import RunError
from graphcl.research import rows


def test_rows_are_read_as_written(tmp_path):
    path = tmp_path / "below/rows.jsonl"
    assert rows.read(path) == []
    written = [{"seed": 0, "text": "a\u2028b"}, {"seed": 1, "score": 0.5}]
    for row in written:
        rows.append(path, row)
    assert rows.read(path) == written
    assert path.read_bytes().count(b"\n") == 2


@pytest.mark.parametrize("torn", [b'{"seed": 2, "acc', b'{"seed"', b"{"])
def test_a_torn_last_line_is_skipped_and_the_next_row_is_whole(tmp_path, torn):
    path = tmp_path / "rows.jsonl"
    rows.append(path, {"seed": 1})
    with path.open("ab") as file:
        file.write(torn)
    assert rows.read(path) == [{"seed": 1}]
    rows.append(path, {"seed": 2})
    assert rows.read(path) == [{"seed": 1}, {"seed": 2}]


@pytest.mark.parametrize("line", [b"not json\n", b"[1, 2]\n", b'{"a": 1} {"b": 2}\n'])
def test_a_broken_line_is_refused(tmp_path, line):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(json.dumps({"seed": 1}).encode() + b"\n" + line)
    with pytest.raises(RunError, match="line 2"):
        rows.read(path)


def test_nan_is_refused(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        rows.append(tmp_path / "rows.jsonl", {"loss": float("nan")})
    assert rows.read(tmp_path / "rows.jsonl") == []


def test_the_last_row_of_a_key_counts():
    found = rows.latest([{"k": 1, "v": 1}, {"k": 2, "v": 2}, {"k": 1, "v": 3}], lambda r: r["k"])
    assert [row["v"] for row in found.values()] == [3, 2]


def test_provenance_says_where_a_row_comes_from(monkeypatch):
    monkeypatch.setenv("GRAPHCL_COMMIT", "abc")
    about = rows.provenance(torch.device("cpu"))
    assert (about["commit"], about["device"]) == ("abc", "cpu")
    assert {"graphcl", "torch", "numpy"} <= about["versions"].keys()
