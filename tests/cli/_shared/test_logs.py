from graphcl.cli.main import run
from tests.cli.conftest import QUICK


def test_tensorboard_curves_end_up_in_the_run(folder, capsys):
    assert run(["train", "mine.npz", *QUICK, "--log", "tensorboard"]) == 0
    assert "tensorboard --logdir" in capsys.readouterr().err
    assert len(list((folder / "runs/mine/tensorboard").iterdir())) == 1
    assert [path.name for path in (folder / "runs").iterdir()] == ["mine"]
    wild = ["--set", "learning_rate=1e30", "--log", "tensorboard", "--overwrite"]
    assert run(["train", "mine.npz", *QUICK, *wild]) == 2
    assert [path.name for path in (folder / "runs").iterdir()] == ["mine"]
