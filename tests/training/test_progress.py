from graphcl.training.progress import PlainProgress, duration, progress
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
