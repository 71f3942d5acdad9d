"""Hosts see each other over wires of a given speed, have a limit of memory, and leave nothing."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.hosts import memory_bytes, run_hosts
from benchmarks.namespaces import GROUPS, remove_left, why_not

ROOT = Path(__file__).parents[2]
WHY = why_not()
pytestmark = pytest.mark.skipif(bool(WHY), reason=f"hosts cannot be made here: {WHY}")

# Host 1 sends 5 MB to host 0.
TALK = """
import os, socket, time
address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if os.environ["RANK"] == "0":
    with socket.create_server(address) as server:
        server.settimeout(20)
        connection = server.accept()[0]
        received = 0
        while piece := connection.recv(1 << 16):
            received += len(piece)
    assert received == 5_000_000, received
else:
    for attempt in range(100):
        try:
            connection = socket.create_connection(address, 5)
            break
        except OSError:
            time.sleep(0.1)
    connection.sendall(b"x" * 5_000_000)
    connection.close()
"""


def spaces():
    return subprocess.run(
        ["ip", "netns", "list"], capture_output=True, text=True, check=True
    ).stdout


@pytest.fixture(autouse=True)
def nothing_is_left():
    yield
    name = f"gcl{os.getpid()}"
    assert name not in spaces()
    assert not list(GROUPS.glob(f"memory/{name}*"))
    assert not list(GROUPS.glob(f"{name}*"))


def python(program):
    return [sys.executable, "-c", program]


@pytest.mark.parametrize("rate", ["20mbit", ""])
def test_a_wire_has_its_speed_and_counts_bytes(rate):
    found = run_hosts(python(TALK), 2, rate=rate, seconds=60)
    assert [one["code"] for one in found["each"]] == [0, 0], found["output"]
    assert 5e6 < found["each"][1]["sent_bytes"] < 6e6
    assert 5e6 < found["each"][0]["received_bytes"] < 6e6
    if rate:  # 40 Mbit, of which the bucket lets the first 8 pass
        assert found["seconds"] > 1.5


def test_memory_is_limited_and_its_peak_is_seen():
    held = "import time; x = bytearray(b'x') * (100 << 20); time.sleep(0.3)"
    found = run_hosts(python(held), 1, memory=memory_bytes("400M"), seconds=60)
    assert found["each"][0]["code"] == 0
    assert 100 << 20 < found["each"][0]["anonymous_bytes"] < 200 << 20
    assert found["each"][0]["group_bytes"] >= found["each"][0]["anonymous_bytes"]
    found = run_hosts(python(held), 1, memory=memory_bytes("64M"), seconds=60)
    assert found["each"][0]["code"] == -9
    assert found["each"][0]["group_bytes"] <= 64 << 20


def test_faults_strike_and_are_mended():
    wait = "import time; began = time.time(); time.sleep(2)"
    found = run_hosts(python(wait), 2, faults=["kill"], between=(0.3, 0.5), seconds=30)
    assert sorted(one["code"] for one in found["each"]) == [-9, 0]
    # A stopped process loses the time; the link comes back, or the 5 MB would not arrive.
    loop = "import time\nfor _ in range(20): time.sleep(0.05)"
    found = run_hosts(python(loop), 1, faults=["stop:2"], between=(0.3, 0.5), seconds=30)
    assert found["each"][0]["code"] == 0
    assert found["seconds"] > 2.2
    found = run_hosts(python(TALK), 2, faults=["down:1"] * 2, between=(0, 0.1), seconds=30)
    assert [one["code"] for one in found["each"]] == [0, 0], found["output"]
    assert [one["kind"] for one in found["faults"]] == ["down", "down"]


def test_all_start_again_after_one_failed(tmp_path):
    once = f"""
import os, pathlib, sys, time
path = pathlib.Path({str(tmp_path)!r}, "attempts-" + os.environ["RANK"])
path.write_text(path.read_text() + "x" if path.exists() else "x")
time.sleep(2)
if os.environ["RANK"] == "1" and os.environ["GRAPHCL_ATTEMPT"] == "0":
    sys.exit(3)
time.sleep(1)
"""
    found = run_hosts(python(once), 2, restarts=2, seconds=30)
    assert found["attempts"] == 2
    assert [one["code"] for one in found["each"]] == [0, 0]
    assert [Path(tmp_path, f"attempts-{rank}").read_text() for rank in (0, 1)] == ["xx", "xx"]


def test_the_time_is_bounded():
    began = time.perf_counter()
    found = run_hosts(python("import time; time.sleep(60)"), 2, seconds=1)
    assert found["timed_out"]
    assert time.perf_counter() - began < 10


def test_what_a_killed_launcher_left_is_removed():
    program = "import time\nfrom benchmarks.namespaces import hosts\n"
    program += "with hosts(1):\n    print('made', flush=True)\n    time.sleep(60)"
    for number in (signal.SIGTERM, signal.SIGKILL):
        launcher = subprocess.Popen(python(program), stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert launcher.stdout.readline() == "made\n"
        assert f"gcl{launcher.pid}-0" in spaces()
        launcher.send_signal(number)
        launcher.wait(20)
        launcher.stdout.close()
        left = f"gcl{launcher.pid}-0" in spaces()
        assert left == (number == signal.SIGKILL)
        remove_left()
        assert f"gcl{launcher.pid}" not in spaces()
        assert not list(GROUPS.glob(f"memory/gcl{launcher.pid}*"))


def test_the_command_line(tmp_path):
    words = [sys.executable, "-m", "benchmarks.hosts", "--hosts", "2", "--out", "rows.jsonl", "--"]
    echo = [sys.executable, "-c", "import sys; sys.exit(int(sys.argv[1]))", "{rank}"]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    options = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True}
    done = subprocess.run([*words, *echo], check=False, timeout=120, **options)
    assert done.returncode == 1
    assert "--- host 1 ---" in done.stderr
    assert '"code": 1' in (tmp_path / "rows.jsonl").read_text()
    with pytest.raises(SystemExit, match="--fault must be"):
        run_hosts(["true"], 1, faults=["fire"])
    with pytest.raises(SystemExit, match="--memory must be"):
        memory_bytes("much")
