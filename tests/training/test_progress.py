import io
import sys

import pytest
import torch
from sklearn.pipeline import Pipeline

from graphcl.estimator.model import GraphCL
from graphcl.training.loop import EpochMetrics, PartedMetrics, TrainingState
from graphcl.training.progress import progress
from tests.conftest import configured


class Terminal(io.StringIO):
    def isatty(self):
        return True


def state_at(epoch, step, seconds, *, each=10, total=25):
    state = TrainingState(None, None, each, total, epoch=epoch, step=step, seconds=seconds)
    state.results = [torch.tensor([4.5, 1.0])] * step
    return state


def metrics_at(state, **more):
    kind = PartedMetrics if more else EpochMetrics
    return kind(state.epoch, 4.25, 1.0, None, state.seconds, **more)


def test_lines_say_steps_rate_and_eta_every_few_seconds(capsys):
    with progress(label="cora") as show:
        show.step(state_at(0, 1, 2.0))  # at once: it says how long all will take
        show.step(state_at(0, 2, 4.0))  # too soon
        show.step(state_at(0, 4, 8.0))
        show.step(state_at(0, 10, 20.0))  # the epoch speaks for its last step
        ended = state_at(1, 0, 20.0)
        show.step(ended)
        show(metrics_at(ended))
        show.step(state_at(2, 3, 21.0))  # faster now, and too soon
        show.step(state_at(2, 4, 26.0))
        cut = state_at(3, 0, 27.0)
        show.step(cut)
        show(metrics_at(cut))  # the end, whatever the time
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == [
        "cora: epoch 1/3, step 1/10  loss 4.5000  2.0 s/step  ETA 48 s",
        "cora: epoch 1/3, step 4/10  loss 4.5000  2.0 s/step  ETA 42 s",
        "cora: epoch 1/3  loss 4.2500  2.0 s/step  ETA 30 s",
        "cora: epoch 3/3, step 4/5  loss 4.5000  1.1 s/step  ETA 1 s",
        "cora: epoch 3/3  loss 4.2500  took 27 s",
    ]


def test_nothing_is_said_that_is_not_known(capsys):
    with progress() as show:
        show.step(state_at(0, 1, 0.0))
        long = state_at(1, 0, 444.0, each=1, total=1)
        show.step(long)
        show(metrics_at(long, sent_bytes=2e6, cache_hits=None))
    unknown, took = capsys.readouterr().err.splitlines()
    assert unknown == "train: epoch 1/3, step 1/10  loss 4.5000  ETA unknown"
    assert took == "train: epoch 1/1  loss 4.2500  took 7 min 24 s  2.00 MB sent a step"


def test_a_fast_training_has_steps_per_second(capsys):
    with progress() as show:
        show.step(state_at(1, 5, 0.01))
    assert "1,500.00 steps/s  ETA 0 s" in capsys.readouterr().err


def test_a_terminal_has_a_bar_of_steps():
    stream = Terminal()
    with progress(label="cora", stream=stream) as show:
        show.step(state_at(0, 4, 8.0))
    shown = stream.getvalue()
    assert "4/25" in shown
    assert "epoch 1/3, step 4/10" in shown


class Notebook(io.StringIO):
    """What a notebook has for stderr."""


Notebook.__module__ = "ipykernel.iostream"


def test_a_notebook_has_a_bar_in_one_line():
    stream = Notebook()
    with progress(label="cora", stream=stream) as show:
        show.step(state_at(0, 4, 8.0))
        show.step(state_at(0, 8, 16.0))
    start, *shown = stream.getvalue().split("\r")
    assert start == ""
    assert [line.split()[1:3] for line in shown] == [["━━━", "4/25"], ["━━━━━━", "8/25"]]
    assert stream.getvalue().count("\n") == 1


@pytest.mark.parametrize("stream", [Terminal, Notebook, io.StringIO])
def test_a_bar_is_shown_where_somebody_watches_and_scikit_learn_does_not_call(
    graph, stream, monkeypatch
):
    model = GraphCL(dim=8, epochs=1, batch_nodes=20, device="cpu")
    shown = []
    for train in (model.fit, Pipeline([("embed", model)]).fit):
        monkeypatch.setattr("sys.stderr", stream())
        train(graph)
        shown.append("epoch 1/1" in sys.stderr.getvalue())
    watched = stream is not io.StringIO
    assert shown == [watched, False]
    monkeypatch.setattr("sys.stderr", stream())
    model.set_params(verbose=False).fit(graph)
    assert sys.stderr.getvalue() == ""


def test_who_does_not_speak_is_silent(capsys):
    with progress(speaks=False) as show:
        show.step(state_at(0, 1, 2.0))
        done = state_at(3, 0, 9.0)
        show.step(done)
        show(metrics_at(done))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("mode", ["full", "sampled"])
def test_a_real_training_speaks_within_an_epoch(graph, mode, capsys, monkeypatch):
    monkeypatch.setattr("graphcl.training.progress.LINE_EVERY_SECONDS", 0.0)
    settings = {"mode": mode, "batch_nodes": 20, "dim": 8, "epochs": 2, "fan_out": 3}
    configured(device="cpu", verbose=True, **settings).fit(graph)
    each = -(-graph.num_nodes // 20)
    lines = [one for one in capsys.readouterr().err.splitlines() if one.startswith("train: ")]
    places = [line.split("  ")[0].removeprefix("train: ") for line in lines]
    assert places == [
        place
        for epoch in ("epoch 1/2", "epoch 2/2")
        for place in [*(f"{epoch}, step {step}/{each}" for step in range(1, each)), epoch]
    ]
    assert all("ETA" in line for line in lines[:-1])
    assert "took" in lines[-1]
