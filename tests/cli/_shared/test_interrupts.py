import signal
import subprocess
import sys


def test_sigterm_ends_any_command_with_130_and_a_word(folder):
    options = ["--method", "dgi", "--set", "epochs=10000000", "--set", "patience=10000000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "graphcl", "train", "mine.npz", *options],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    for line in process.stderr:
        if "DGI" in line:
            break
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.rstrip().endswith("graphcl: interrupted")
    assert list(folder.iterdir()) == [folder / "mine.npz"]
