import builtins

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from graphcl.errors import MissingExtraError
from graphcl.estimator import GraphCL
from graphcl.training.loop import EpochMetrics
from graphcl.training.progress import PlainProgress, TensorBoardLog, duration, progress
from tests.training.test_loop import trained


def test_plain_progress_says_rate_and_eta(graph, capsys):
    with progress(4, label="cora") as show:
        assert isinstance(show, PlainProgress)
        trained(graph, on_epoch=show)
    lines = capsys.readouterr().err.splitlines()
    assert "cora: epoch 1/4" in lines[0]
    assert "epochs/s  ETA" in lines[0]
    assert "epoch 4/4" in lines[-1]


def test_durations():
    assert [duration(s) for s in (0.4, 61, 7300)] == ["0 s", "1 min 01 s", "2 h 01 min"]


def read(folder):
    events = EventAccumulator(str(folder)).Reload()
    return {
        name: [(event.step, event.value) for event in events.Scalars(name)]
        for name in events.Tags()["scalars"]
    }


def test_an_estimator_writes_its_curves(graph, recipe, tmp_path):
    model = GraphCL(recipe, device="cpu")
    with TensorBoardLog(tmp_path) as log:
        model.fit(graph, on_epoch=log)
    scalars = read(tmp_path)
    assert set(scalars) == {"train/loss", "train/gradient_norm", "train/mi_bound"}
    for name, attribute in (("loss", "loss"), ("mi_bound", "mi_bound")):
        expected = [(m.epoch, getattr(m, attribute)) for m in model.history_]
        assert scalars[f"train/{name}"] == [(step, pytest.approx(v)) for step, v in expected]


def test_no_bound_no_scalar(tmp_path):
    with TensorBoardLog(tmp_path) as log:
        log(EpochMetrics(1, 2.0, 0.5, None, 0.1))
    assert set(read(tmp_path)) == {"train/loss", "train/gradient_norm"}


def test_the_missing_extra_is_named(monkeypatch, tmp_path):
    real = builtins.__import__

    def without(name, *rest, **keywords):
        if name == "torch.utils.tensorboard":
            raise ImportError(name)
        return real(name, *rest, **keywords)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"graphcl\[tensorboard\]"):
        TensorBoardLog(tmp_path)
