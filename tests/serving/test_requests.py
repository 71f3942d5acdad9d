"""Bodies of requests: what is understood, what is refused and with which status."""

import contextlib
import io
import json

import numpy as np
import pyarrow
import pyarrow.ipc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphcl.serving.requests import ARROW, AT_ONCE, JSON, Asked, AskedError, Bounds, read_asked
from tests.conftest import FUZZ

BOUNDS = Bounds(nodes=5, neighbours=4, k=7)
TAKES = ("ids", "new", "pairs", "k")


def asked(value, kind=JSON, takes=TAKES):
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return read_asked(body, kind, BOUNDS, features=3, takes=takes)


def stream(columns, options=None):
    table = pyarrow.table(columns)
    sink = io.BytesIO()
    with pyarrow.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue()


def test_ids_count_as_their_text():
    found = asked({"ids": [7, "7", "ä"], "k": 3})
    assert (found.ids, found.k) == (["7", "7", "ä"], 3)
    assert asked({"pairs": [[1, "b"]]}).pairs == [("1", "b")]


def test_a_large_body_is_read_without_the_extra_too(monkeypatch):
    body = json.dumps({"ids": ["a", 7]}).encode() + b" " * (AT_ONCE + 1)
    expected = asked(body).ids
    monkeypatch.setattr("graphcl.serving.requests.orjson", None)
    assert asked(body).ids == expected == ["a", "7"]


def test_new_nodes():
    node = {"features": [1, 2.5, 3], "neighbors": ["a", 2], "weights": [1, 0.5]}
    some = {"features": {"2": 9}, "weights": []}
    found = asked({"new": [node, some], "edges": [[0, 1]]}, "application/json; charset=utf-8").new
    assert found.features.tolist() == [[1, 2.5, 3], [0, 0, 9]]
    assert (found.neighbours, found.weights) == ([["a", "2"], []], [[1.0, 0.5], []])
    assert found.edges == [[0.0, 1.0]]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"", 400, "not JSON"),
        (b"\xff\xfe", 400, "not UTF-8: byte 0"),
        (b'{"ids": [1,]}', 400, "line 1, column 12"),
        (b"[1]", 400, "object"),
        (b"[" * 10_000, 400, "too deeply"),
        (b"[" * 10_001, 413, "10000 lists and objects"),
        (b'{"ids": [' + b"9" * 5000 + b"]}", 400, "too many digits"),
        (b'{"ids": [' + b" " * 70_000 + b"9" * 5000 + b"]}", 400, "too many digits"),
        (b'{"ids": [' + b" " * 70_000 + b"NaN]}", 400, "NaN is no number"),
        (b'{"new": [{"features": [NaN, 0, 0]}]}', 400, "NaN is no number"),
        (b'{"ids": [5], "ids": [6]}', 400, "the key 'ids' is given twice"),
        (b'{"new": [{"features": [1e999, 0, 0]}]}', 400, "finite"),
        (b'{"new": [{"features": [1e300, 0, 0]}]}', 400, "float32"),
        ({"new": [{"features": [10**400, 0, 0]}]}, 400, "finite"),
        ({}, 400, "one of"),
        ({"ids": ["a"], "pairs": [["a", "b"]]}, 400, "one of"),
        ({"ids": []}, 400, "at least one"),
        ({"ids": "abc"}, 400, "list"),
        ({"ids": [True]}, 400, "text or a whole number"),
        ({"ids": [1.5]}, 400, "text or a whole number"),
        ({"ids": [None]}, 400, "text or a whole number"),
        ({"ids": ["a"] * 6}, 413, "5 at most"),
        ({"ids": ["a" * 5000]}, 413, "4096"),
        ({"ids": ["a"], "k": 0}, 400, "k must"),
        ({"ids": ["a"], "k": 8}, 400, "k must"),
        ({"ids": ["a"], "k": True}, 400, "k must"),
        ({"ids": ["a"], "path": "/etc/passwd"}, 400, "unknown key 'path'"),
        ({"ids": ["a"], "edges": [[0, 1]]}, 400, "edges are of new"),
        ({"pairs": [["a"]]}, 400, "two ids"),
        ({"pairs": [["a", "b", "c"]]}, 413, "2 at most"),
        ({"new": [[1, 2, 3]]}, 400, "object with features"),
        ({"new": [{"neighbors": []}]}, 400, "object with features"),
        ({"new": [{"features": [1, 2]}]}, 400, "3 numbers; got 2"),
        ({"new": [{"features": [1, 2, 3, 4]}]}, 413, "3 at most"),
        ({"new": [{"features": ["a", 2, 3]}]}, 400, "numbers"),
        ({"new": [{"features": {"3": 1}}]}, 400, "0 to 2"),
        ({"new": [{"features": {"-1": 1}}]}, 400, "0 to 2"),
        ({"new": [{"features": {"٣": 1}}]}, 400, "0 to 2"),
        ({"new": [{"features": [1, 2, 3], "x": 1}]}, 400, "unknown key 'x'"),
        ({"new": [{"features": [1, 2, 3], "neighbours": []}]}, 400, "did you mean 'neighbors'"),
        ({"new": [{"features": [1, 2, 3], "neighbors": ["a"] * 5}]}, 413, "4 at most"),
        ({"new": [{"features": [1, 2, 3]}], "edges": [[0]]}, 400, "pairs"),
        ({"new": [{"features": [1, 2, 3]}], "edges": [[0, 1], [0, 1, 2]]}, 400, "all with"),
        ({"new": [{"features": {}, "weights": []}, {"features": {}}]}, 400, "all new nodes"),
    ],
)
def test_what_is_not_understood_is_refused(body, status, words):
    with pytest.raises(AskedError, match=words) as error:
        asked(body)
    assert error.value.status == status


def test_an_address_refuses_keys_that_it_does_not_know():
    with pytest.raises(AskedError, match="unknown key 'pairs'"):
        asked({"pairs": [["a", "b"]]}, takes=("ids", "new"))
    for kind in ("", "text/plain", "application/x-www-form-urlencoded"):
        with pytest.raises(AskedError) as error:
            asked({"ids": ["a"]}, kind)
        assert error.value.status == 415


def test_arrow_says_the_same_as_json():
    assert asked(stream({"id": ["a", "b"]}), ARROW).ids == ["a", "b"]
    assert asked(stream({"id": [1, 2]}), ARROW).ids == ["1", "2"]
    pairs = stream({"source": ["a"], "target": ["b"]})
    assert asked(pairs, ARROW).pairs == [("a", "b")]
    features = pyarrow.array([[1.0, 2, 3]], pyarrow.list_(pyarrow.float32(), 3))
    new = asked(stream({"features": features, "neighbors": [["a", "b"]]}), ARROW).new
    assert new.features.tolist() == [[1, 2, 3]]
    assert new.neighbours == [["a", "b"]]


def test_arrow_that_could_grow_is_refused_before_it_is_unpacked():
    big = {"id": ["a" * 100_000] * 5}
    for codec in ("lz4", "zstd"):
        packed = stream(big, pyarrow.ipc.IpcWriteOptions(compression=codec))
        assert len(packed) < 5000
        with pytest.raises(AskedError, match="may not be compressed"):
            asked(packed, ARROW)
    codes = pyarrow.array(["a"] * 5).dictionary_encode()
    with pytest.raises(AskedError, match="may not hold a dictionary"):
        asked(stream({"id": codes}), ARROW)


@pytest.mark.parametrize(
    ("columns", "status", "words"),
    [
        ({"id": ["a"] * 6}, 413, "5 rows"),
        ({"id": [True]}, 400, "type bool"),
        ({"id": [[["a"]]]}, 400, "type list"),
        ({"name": ["a"]}, 400, "columns must be"),
        ({"id": pyarrow.array([None], pyarrow.string())}, 400, "text or a whole number"),
        ({"features": [[1.0, np.nan, 2.0]]}, 400, "finite"),
        ({"features": [None]}, 400, "null|object with features"),
    ],
)
def test_arrow_that_does_not_fit_is_refused(columns, status, words):
    with pytest.raises(AskedError, match=words) as error:
        asked(stream(columns), ARROW)
    assert error.value.status == status


@FUZZ
@given(data=st.data())
def test_damaged_arrow_is_refused_or_understood(data):
    whole = bytearray(stream({"id": ["a", "bc"]}))
    for _ in range(data.draw(st.integers(1, 6))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    body = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    with contextlib.suppress(AskedError):  # anything else is a failure
        assert isinstance(asked(body, ARROW), Asked)


@FUZZ
@given(body=st.binary(max_size=300))
def test_any_bytes_are_refused(body):
    for kind in (JSON, ARROW):
        with pytest.raises(AskedError):
            asked(body, kind)
