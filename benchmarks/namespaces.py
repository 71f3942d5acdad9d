"""Hosts made of network namespaces and control groups of memory; `benchmarks.hosts` uses them."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

SUBNET, WIRE, PREFIX = "10.77.0", "eth0", "gcl"
GROUPS = Path("/sys/fs/cgroup")
TICK = 0.05


class Host:
    """A namespace, a control group, and the command that runs in them."""

    def __init__(self, rank: int, name: str, limit: int | None) -> None:
        self.rank, self.space = rank, f"{name}-{rank}"
        self.group = MemoryGroup.make(self.space, limit)
        self.process: subprocess.Popen[bytes] | None = None
        self.anonymous = 0

    def start(self, command: Sequence[str], environment: dict[str, str], log: Path) -> None:
        """Starts the command; its output goes to a file."""
        words = [word.replace("{rank}", str(self.rank)) for word in command]
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                ["nsenter", f"--net=/run/netns/{self.space}", "--", *words],
                env=os.environ | environment | {"RANK": str(self.rank)},
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=self.group.join,
            )

    def code(self) -> int | None:
        """Returns the exit code, or None while the command runs."""
        return None if self.process is None else self.process.poll()

    def watch(self) -> None:
        """Notes the anonymous memory of all processes, which goes with them."""
        self.anonymous = max(self.anonymous, self.group.anonymous())

    def wire(self) -> dict[str, int]:
        """Returns the bytes that left and came in."""
        shown = said("ip", "-n", self.space, "-s", "-j", "link", "show", WIRE)
        stats = json.loads(shown)[0]["stats64"]
        return {"sent_bytes": stats["tx"]["bytes"], "received_bytes": stats["rx"]["bytes"]}

    def leaf(self) -> int | None:
        """Returns a process that has started no other: a worker rather than its launcher."""
        alive = self.group.processes()
        leaves = [pid for pid in alive if not read(f"/proc/{pid}/task/{pid}/children").split()]
        return random.choice(leaves) if leaves else None

    def signal(self, number: int) -> None:
        """Sends a signal to all processes of the host."""
        for pid in self.group.processes():
            kill(pid, number)

    def end(self) -> None:
        """Ends all processes, for certain."""
        self.group.end()
        if self.process is not None:
            self.process.wait(10)


class MemoryGroup:
    """A control group of version 1 or 2 with a limit of memory; no limit means none."""

    def __init__(self, path: Path) -> None:
        self._second, self.path = _second(), path

    @classmethod
    def make(cls, name: str, limit: int | None) -> Self:
        """Makes a group."""
        group = cls(GROUPS / name if _second() else GROUPS / "memory" / name)
        group.path.mkdir()
        if limit is not None:
            file = "memory.max" if _second() else "memory.limit_in_bytes"
            (group.path / file).write_text(str(limit))
            if (group.path / "memory.swap.max").exists():
                (group.path / "memory.swap.max").write_text("0")
        return group

    def end(self) -> None:
        """Kills all its processes, and waits until they are gone."""
        for _ in range(200):
            alive = self.processes()
            if not alive:
                return
            for pid in alive:
                kill(pid, signal.SIGKILL)
            time.sleep(TICK)

    def join(self) -> None:
        """Puts the calling process into the group."""
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def processes(self) -> list[int]:
        """Returns the processes in the group."""
        return [int(pid) for pid in read(str(self.path / "cgroup.procs")).split()]

    def peak(self) -> int:
        """Returns the most that the group ever held, mapped files included."""
        name = "memory.peak" if self._second else "memory.max_usage_in_bytes"
        return int(read(str(self.path / name)) or 0)

    def anonymous(self) -> int:
        """Returns what it holds now, without files."""
        name = "anon" if self._second else "total_rss"
        found = re.search(rf"^{name} (\d+)$", read(str(self.path / "memory.stat")), re.MULTILINE)
        return int(found[1]) if found else 0

    def killed(self) -> int:
        """Returns how many processes the kernel ended for lack of memory."""
        name = "memory.events" if self._second else "memory.oom_control"
        found = re.search(r"^oom_kill (\d+)$", read(str(self.path / name)), re.MULTILINE)
        return int(found[1]) if found else 0

    def remove(self) -> None:
        """Removes the group, which must be empty."""
        for _ in range(100):
            try:
                self.path.rmdir()
            except OSError:
                time.sleep(TICK)
            else:
                return


def _second() -> bool:
    return (GROUPS / "cgroup.controllers").exists()


def why_not() -> str:
    """Returns why hosts cannot be made on this machine; empty if they can."""
    if os.geteuid() != 0:
        return "it needs root"
    missing = [name for name in ("ip", "tc", "nsenter") if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} is not installed (Debian: iproute2, util-linux)"
    if not _second() and not (GROUPS / "memory/memory.limit_in_bytes").exists():
        return "there is no control group for memory"
    return ""


@contextmanager
def hosts(count: int, *, memory: int | None = None, rate: str = "") -> Iterator[list[Host]]:
    """Yields hosts that see each other and nothing else; removes them at the end.

    SIGTERM ends the block as Ctrl-C does. What a process left that was killed is removed by the
    next one.
    """
    remove_left()
    name = f"{PREFIX}{os.getpid()}"
    hub, made = f"{name}-hub", []
    spaces = [hub]
    before = signal.signal(signal.SIGTERM, _interrupted)
    try:
        said("ip", "netns", "add", hub)
        said("ip", "-n", hub, "link", "add", "bridge", "type", "bridge")
        said("ip", "-n", hub, "link", "set", "bridge", "up")
        for rank in range(count):
            host = Host(rank, name, memory)
            made.append(host)
            said("ip", "netns", "add", host.space)
            spaces.append(host.space)
            _join(hub, host, rate)
        yield made
    finally:
        for host in made:
            host.end()
        for space in spaces:
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)
        for host in made:
            host.group.remove()
        signal.signal(signal.SIGTERM, before)


def remove_left() -> None:
    """Removes namespaces and groups of processes that are no more, and ends what is in them.

    A name has the number of the process that made it.
    """
    for parent in (GROUPS, GROUPS / "memory"):
        for path in parent.glob(f"{PREFIX}*-*"):
            if _is_left(path.name):
                group = MemoryGroup(path)
                group.end()
                group.remove()
    for line in said("ip", "netns", "list").splitlines():
        name = line.split()[0] if line.split() else ""
        if _is_left(name):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def _is_left(name: str) -> bool:
    found = re.fullmatch(rf"{PREFIX}(\d+)-\w+", name)
    return found is not None and not Path("/proc", found[1]).exists()


def _interrupted(number: int, _: Any) -> None:
    raise SystemExit(128 + number)


def _join(hub: str, host: Host, rate: str) -> None:
    port, space = f"port{host.rank}", host.space
    peer = ("peer", "name", WIRE, "netns", space)
    said("ip", "-n", hub, "link", "add", port, "type", "veth", *peer)
    said("ip", "-n", hub, "link", "set", port, "master", "bridge", "up")
    said("ip", "-n", space, "addr", "add", f"{SUBNET}.{host.rank + 1}/24", "dev", WIRE)
    for device in ("lo", WIRE):
        said("ip", "-n", space, "link", "set", device, "up")
    if rate:  # both directions; without offloads a packet would be larger than the bucket
        for where, device in ((space, WIRE), (hub, port)):
            limits = ("rate", rate, "burst", "1mb", "latency", "200ms")
            said("tc", "-n", where, "qdisc", "add", "dev", device, "root", "tbf", *limits)


def said(*words: str) -> str:
    """Runs a program that must succeed; returns what it says."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"hosts: {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def kill(pid: int, number: int) -> None:
    """Sends a signal to a process, if it is still there."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def read(path: str) -> str:
    """Returns the text of a file; empty if it has gone."""
    try:
        return Path(path).read_text()
    except OSError:  # it has ended
        return ""
