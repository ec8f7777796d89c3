"""Simulated machines: network namespaces on one switch, whose links can be cut, slowed and made lossy.

    with Network("head", "left", "right") as network:
        process = network.start("left", ["python", "server.py", network.address("left")])
        with network.cut("left", "right"):        # packets are dropped silently
            ...
        with network.lossy("head", "right", 0.1): # a tenth is dropped, in both directions
            ...

The switch is a namespace too, so this machine's own network is not touched. Packets are dropped where they
arrive, by iptables. Packets of a slow link go through a process that delays them (`slow_link.py`), since
not every kernel can.

Names of namespaces contain the id of the process that made them, so that the next run can remove those of a
killed run.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import psutil

_PREFIX = "penstock"
_SUBNET = "10.77.0"


def not_allowed() -> str:
    """The reason why this process cannot create networks; empty if it can."""
    if missing := [tool for tool in ("ip", "iptables") if shutil.which(tool) is None]:
        return f"no {' and no '.join(missing)} on this machine"
    name = f"{_PREFIX}-{os.getpid()}-try"
    try:
        _run("ip", "netns", "add", name)
        try:
            _run("ip", "-n", name, "link", "add", "try", "type", "bridge")
            _run(
                "ip",
                "netns",
                "exec",
                name,
                "iptables",
                "-w",
                "-A",
                "INPUT",
                "-s",
                "192.0.2.1",
                "-j",
                "DROP",
            )
        finally:
            _run("ip", "netns", "del", name)
    except subprocess.CalledProcessError as refused:
        return f"no network namespaces here: {refused.stderr.strip()}"
    return ""


class Network:
    """Machines by name, each with an address on one switch. A context manager, which kills all their
    processes at the end."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self._spaces = {name: f"{_PREFIX}-{os.getpid()}-{name}" for name in (*names, "switch")}
        self._processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Network:
        _remove_left_behind()
        with ExitStack() as stack:
            stack.callback(self._remove)
            self._make()
            stack.pop_all()
        return self

    def __exit__(self, *raised: object) -> None:
        self._remove()

    def address(self, name: str) -> str:
        return f"{_SUBNET}.{self._names.index(name) + 1}"

    def number(self, name: str) -> int:
        """The system's id of a machine's network: the inode of its namespace."""
        return os.stat(f"/var/run/netns/{self._spaces[name]}").st_ino

    @contextmanager
    def entered(self, name: str) -> Iterator[None]:
        """Run the block on a machine: this thread, and the threads and processes that it starts."""
        with (
            open("/proc/thread-self/ns/net") as back,
            open(f"/var/run/netns/{self._spaces[name]}") as space,
        ):
            _enter(space.fileno())
            try:
                yield
            finally:
                _enter(back.fileno())

    def command(self, name: str, command: Sequence[str]) -> list[str]:
        """A command line that runs a command on a machine."""
        return ["ip", "netns", "exec", self._spaces[name], *command]

    def start(
        self,
        name: str,
        command: Sequence[str],
        env: dict[str, str] | None = None,
        stdin: int | None = None,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
    ) -> subprocess.Popen[str]:
        """Start a process on a machine. It is killed when the network ends."""
        process = subprocess.Popen(
            self.command(name, command),
            env={**os.environ, **(env or {})},
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            text=True,
        )
        self._processes.append(process)
        return process

    # -- faults of a link

    @contextmanager
    def cut(self, one: str, other: str) -> Iterator[None]:
        """Drop all packets between two machines."""
        with self.cut_one_way(one, other), self.cut_one_way(other, one):
            yield

    @contextmanager
    def cut_one_way(self, sender: str, receiver: str) -> Iterator[None]:
        """Drop all packets from `sender` to `receiver`, but not in the other direction."""
        with self._dropping(sender, receiver):
            yield

    @contextmanager
    def lossy(self, one: str, other: str, share: float) -> Iterator[None]:
        """Drop a share of the packets between two machines, at random."""
        chance = ("-m", "statistic", "--mode", "random", "--probability", str(share))
        with self._dropping(one, other, chance), self._dropping(other, one, chance):
            yield

    @contextmanager
    def slow(self, one: str, other: str, delay_ms: float) -> Iterator[None]:
        """Delay packets between two machines by `delay_ms` milliseconds, in each direction."""
        ends = [(self._spaces[one], self.address(other)), (self._spaces[other], self.address(one))]
        device = f"slow{len(self._processes)}"
        relay = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent / "slow_link.py"), device, str(delay_ms)]
            + [space for space, _ in ends],
            stdout=subprocess.PIPE,
            text=True,
        )
        self._processes.append(relay)
        assert relay.stdout is not None
        relay.stdout.readline()  # written when the devices exist
        for space, address in ends:
            _run("ip", "-n", space, "link", "set", device, "up", "mtu", "1500")
            _run("ip", "-n", space, "route", "add", f"{address}/32", "dev", device)
        try:
            yield
        finally:
            for space, address in ends:
                _run("ip", "-n", space, "route", "del", f"{address}/32", "dev", device)
            relay.kill()
            relay.wait()
            relay.stdout.close()

    @contextmanager
    def _dropping(self, sender: str, receiver: str, when: Sequence[str] = ()) -> Iterator[None]:
        rule = ("INPUT", "-s", self.address(sender), *when, "-j", "DROP")
        iptables = self.command(receiver, ["iptables", "-w"])
        _run(*iptables, "-A", *rule)
        try:
            yield
        finally:
            _run(*iptables, "-D", *rule)

    # -- making and removing

    def _make(self) -> None:
        switch = self._spaces["switch"]
        _run("ip", "netns", "add", switch)
        _run("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", switch, "link", "set", "bridge", "up")
        for number, name in enumerate(self._names):
            space, port = self._spaces[name], f"port{number}"
            _run("ip", "netns", "add", space)
            _run(
                *("ip", "-n", switch, "link", "add", port, "type", "veth"),
                *("peer", "name", "eth0", "netns", space),
            )
            _run("ip", "-n", switch, "link", "set", port, "master", "bridge", "up")
            _run("ip", "-n", space, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _run("ip", "-n", space, "link", "set", device, "up")
            # Processes find out their own address from the default route.
            _run("ip", "-n", space, "route", "add", "default", "via", f"{_SUBNET}.254")
            for setting in ("all", "default"):
                # On slow links, replies arrive by another device.
                loose = f"echo 0 > /proc/sys/net/ipv4/conf/{setting}/rp_filter"
                _run(*self.command(name, ["sh", "-c", loose]))

    def _remove(self) -> None:
        for space in self._spaces.values():
            _remove_space(space)
        for process in self._processes:
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    with suppress(OSError):
                        stream.close()


def _enter(space: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(space, 0):
        raise OSError(ctypes.get_errno(), "cannot enter the network namespace of a machine")


def _run(*command: str) -> str:
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=30)
    return done.stdout


def _spaces_there() -> list[str]:
    return [line.split()[0] for line in _run("ip", "netns", "list").splitlines() if line.strip()]


def _remove_space(space: str) -> None:
    """Kill all processes of a namespace, and remove it."""
    if space not in _spaces_there():
        return
    inside = [int(pid) for pid in _run("ip", "netns", "pids", space).split()]
    processes = []
    for pid in inside:
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            process.kill()
            processes.append(process)
    psutil.wait_procs(processes, timeout=10)
    _run("ip", "netns", "del", space)


def _remove_left_behind() -> None:
    """Remove the namespaces of runs whose process has ended."""
    for space in _spaces_there():
        prefix, _, rest = space.partition("-")
        maker = rest.partition("-")[0]
        if prefix == _PREFIX and maker.isdigit() and not psutil.pid_exists(int(maker)):
            _remove_space(space)
