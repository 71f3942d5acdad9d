"""Damaged and forged runs are refused, and a run knows who wrote it."""

import dataclasses
import json
import pickle
import struct

import numpy as np
import pytest
import torch

from graphcl.runs import files
from graphcl.runs.files import answer_file, keep_answer, read_answer_table, read_answers
from tests.forging import Hostile, described, npy, refused

pytestmark = pytest.mark.usefixtures("nothing_runs")


def tensors(dtype, shape, offsets=(0, 64), size=64):
    about = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
    text = json.dumps({"weights.0": about}).encode()
    return weights(struct.pack("<Q", len(text)) + text + bytes(size))


def weights(content):
    return lambda folder: (folder / "model.safetensors").write_bytes(content)


def cut_weights(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-30])


def flipped_weights(folder):
    file = folder / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-3] ^= 16
    file.write_bytes(content)


def hostile_weights(folder):
    torch.save(Hostile(), folder / "model.safetensors")


def config(old, new):
    def change(folder):
        file = folder / "config.toml"
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))

    return change


def lines(content):
    return lambda folder: (folder / "metrics.jsonl").write_text(content)


RUNS = {
    "cut weights": (cut_weights, "model.safetensors: damaged or truncated"),
    "flipped weights": (flipped_weights, "model.safetensors: damaged; its numbers are not those"),
    "no weights": (
        weights(b""),
        "header too small",
    ),
    "absurd header": (weights(struct.pack("<Q", 2**62) + b"{}" + bytes(99)), "header too large"),
    "long header": (weights(struct.pack("<Q", 2**21) + b" " * 2**21), "invalid JSON"),
    "header of noise": (
        weights(struct.pack("<Q", 64) + bytes(range(64, 192))),
        "invalid JSON",
    ),
    "header of a list": (
        weights(struct.pack("<Q", 2) + b"[]" + bytes(9)),
        "invalid JSON",
    ),
    "deep header": (weights(struct.pack("<Q", 99_999) + b"[" * 100_099), "invalid JSON"),
    "unknown dtype": (tensors("PICKLE", [8]), "unknown variant"),
    "dtype that torch lacks": (
        tensors("F4", [8192], [0, 4096], 4096),
        "(holds 'F4')",
    ),
    "lying shape": (tensors("F32", [2**40]), "invalid shape"),
    "negative shape": (tensors("F32", [-4, -4]), "invalid value: integer `-4`"),
    "place beyond": (tensors("F32", [16], [64, 128]), "invalid offset for tensor `weights.0`"),
    "no place": (tensors("F32", [16], None), "invalid"),
    "other shape": (tensors("F32", [4, 4]), "do not fit"),
    "a pickle": (hostile_weights, "damaged or truncated"),
    "long TOML": (config("[run]", "#" * 2**20 + "\n[run]"), "at most 1048576 are read"),
    "deep TOML": (config("[run]", f"[run]\na = {'[' * 50_000}"), "not TOML"),
    "many digits": (config("seed = 0", f"seed = {'9' * 9_999}"), "not TOML"),
    "many features": (config("num_features = 12", "num_features = 1000000000000"), "do not fit"),
    "negative features": (config("num_features = 12", "num_features = -12"), "do not fit"),
    "absurd dim": (config("dim = 8", "dim = 99999999999"), "dim must be in [1, 65536]"),
    "absurd layers": (config("layers = 2", "layers = 100000"), "layers must be in [1, 64]"),
    "wide": (config("dim = 8", "dim = 65536"), "dim = 65536 do not fit model.safetensors"),
    "no seed": (config("seed = 0", "seed = 'x'"), "[run] seed must be a whole number"),
    "metrics of noise": (lines("{\x00"), "metrics.jsonl: damaged"),
    "deep metrics": (lines("[" * 100_000), "metrics.jsonl: damaged"),
    "other metrics": (lines('{"epoch": 1, "evil": 2}'), "metrics.jsonl: damaged"),
    "metrics of a list": (lines("[1, 2]"), "metrics.jsonl: damaged"),
}


@pytest.mark.parametrize("case", RUNS)
def test_runs(case, model, tmp_path, capsys, bounded):
    make, message = RUNS[case]
    make(model)
    refused(["embed", model, "cora", "--out", "z.npy"], capsys, message)
    assert [file.name for file in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (npy(header=described("|O", (2708, 8)), data=pickle.dumps(Hostile())), "holds pickled"),
        (npy(header=described("<f4", (2**50, 8)), data=b"1234"), "damaged"),
        (npy(header=described("<f4", (2**62, 2**62))), "damaged"),
        (pickle.dumps(Hostile()), "damaged"),
        (b"", "damaged"),
    ],
)
def test_embeddings(content, message, model, capsys, bounded):
    config("[run]", '[run]\ngraph = "cora"')(model)
    (model / "embeddings.npy").write_bytes(content)
    refused(["evaluate", model], capsys, f"embeddings.npy: {message}")


ORIGIN = files.Origin("SELECT * FROM 'edges.csv'", "0123456789abcdef", '{"nodes": "people.csv"}')


def sealed(folder, config):
    folder.mkdir(exist_ok=True)
    files.write_config(folder, config)
    return files.read_config(folder)


@pytest.fixture
def own_key(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_a_run_that_this_user_wrote_is_sealed_wherever_it_lies(tmp_path, own_key):
    config = files.RunConfig({}, seed=0, num_features=3, origin=ORIGIN)
    written = sealed(tmp_path / "run", config)
    assert written.is_sealed
    assert written.origin == ORIGIN
    (tmp_path / "run").rename(tmp_path / "moved")
    assert files.read_config(tmp_path / "moved").is_sealed


@pytest.mark.parametrize("key", ["graph", "fingerprint", "tables"])
@pytest.mark.parametrize("value", ["", "other"])
def test_whoever_changes_the_origin_breaks_the_seal(tmp_path, own_key, key, value):
    written = sealed(tmp_path / "run", files.RunConfig({}, seed=0, origin=ORIGIN))
    changed = dataclasses.replace(written, origin=dataclasses.replace(ORIGIN, **{key: value}))
    (tmp_path / "run" / files.CONFIG).write_text(changed.to_toml())
    assert not files.read_config(tmp_path / "run").is_sealed


def test_another_users_seal_and_none_are_not_this_users(tmp_path, own_key, monkeypatch):
    written = sealed(tmp_path / "run", files.RunConfig({}, seed=0, origin=ORIGIN))
    for seal in ("", "0" * 64, written.seal[:-1], "\u00e9"):
        assert not dataclasses.replace(written, seal=seal).is_sealed
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
    assert not written.is_sealed
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/none")  # no place for a key
    assert not sealed(tmp_path / "run", written).is_sealed


def test_a_run_without_a_graph_needs_no_seal(tmp_path, own_key):
    assert sealed(tmp_path / "run", files.RunConfig({}, seed=0)).seal == ""
    assert not (tmp_path / "cache").exists()


def test_summaries_come_back_by_kind(tmp_path):
    assert read_answers(tmp_path) == {}
    assert keep_answer(tmp_path, "predict", {"nodes": 3, "names": ["Zoë"]}) == ""
    assert keep_answer(tmp_path, "cluster", {"sizes": [2, 1]}) == ""
    assert read_answers(tmp_path) == {
        "predict": {"nodes": 3, "names": ["Zoë"]},
        "cluster": {"sizes": [2, 1]},
    }


def test_damaged_summaries_are_left_out_and_a_run_that_cannot_be_written_is_said(tmp_path):
    for text in ("{", "[1]", "[" * 100_000, "\x00"):
        answer_file(tmp_path, "links").write_text(text)
        assert read_answers(tmp_path) == {}
    assert "could not be kept" in keep_answer(tmp_path / "absent", "links", {})


def test_a_table_lies_beside_its_summary(tmp_path):
    table = {"id": np.array(["Zoë", "b"]), "p:yes": np.array([0.5, 0.25], np.float32)}
    assert read_answer_table(tmp_path, "predict") == {}
    assert keep_answer(tmp_path, "predict", {"nodes": 2}, table) == ""
    assert read_answer_table(tmp_path, "predict") == {"id": ["Zoë", "b"], "p:yes": [0.5, 0.25]}
    assert keep_answer(tmp_path, "predict", {"nodes": 2}) == ""  # a summary alone leaves it
    assert read_answer_table(tmp_path, "predict")
    (tmp_path / "answer-predict.parquet").write_bytes(b"PAR1 damaged")
    assert read_answer_table(tmp_path, "predict") == {}
