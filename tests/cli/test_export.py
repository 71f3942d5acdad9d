"""`graphcl export` and `graphcl embed --to` on the command line."""

import json

import numpy as np
import pyarrow.parquet
import pytest

from graphcl.cli.main import run
from tests.cli.conftest import fails


def test_every_export_is_written_once(trained, capsys):
    for to, name in (("onnx", "m.onnx"), ("torch", "m.pt2"), ("card", "card")):
        command = ["export", str(trained), "--to", to, "--out", name]
        assert run([*command, "--json"]) == 0
        about = json.loads(capsys.readouterr().out)
        assert (about["out"], about["to"]) == (name, to)
        assert "already" in fails(capsys, *command) or "exists" in fails(capsys, *command)
        assert run([*command, "--overwrite"]) == 0
        capsys.readouterr()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--to", "tflite"], "--to must be onnx or torch or card"),
        (["--to", "onnx", "--out", "m.pb"], ".onnx"),
        (["--to", "onnx", "--licence", "mit"], "--licence"),
        (["--to", "card", "--licence", "my own"], "a short name"),
    ],
)
def test_what_cannot_be_exported(trained, capsys, arguments, words):
    assert words in fails(capsys, "export", str(trained), *arguments)


def test_embed_to_shards_and_only_some(trained, capsys):
    assert run(["embed", str(trained), "--to", "parquet", "--out", "shards", "--json"]) == 0
    table = pyarrow.parquet.read_table(sorted((trained.parents[1] / "shards").glob("*.parquet")))
    z = np.load(trained / "embeddings.npy")
    found = np.array(table.column("embedding").to_pylist(), np.float32)
    np.testing.assert_array_equal(found, z)
    assert table.column("id").to_pylist() == [f"node {row}" for row in range(len(z))]
    capsys.readouterr()
    some = ["embed", str(trained), "--to", "arrow", "--out", "some.arrow", "--id", "node 3"]
    assert run(some) == 0
    assert "1 embedding of" in capsys.readouterr().out
    assert "--to must be" in fails(capsys, "embed", str(trained), "--to", "csv", "--out", "x")
    assert fails(capsys, "embed", str(trained), "--to", "parquet", "--out", "shards")
