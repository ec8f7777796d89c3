"""Settings: what can be tuned, in which unit, and why the default is what it is.

They are read once, when a flow starts, and handed down; nothing deeper reads an environment variable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from penstock.errors import SettingError
from penstock.faults import Fault

ScheduleName = Literal["ct", "lp", "et", "qst"]
HostExecutors = Literal["own", "shared"]

HOST_JVM_MB = 512
"""Megabytes of the JVM of a host's own executor. Spark asks for 450 at least, and a host uses none of it."""
_LAST_PORT = 65_535
_PARTS_PER_WORKER = 2
"""A worker then finds another part when one is taken. Each part more costs a call."""


def port_range(text: int | str) -> range:
    """The ports that a setting names: one, or the first and the last. 0 is any.

    >>> port_range("20000-20099"), port_range(4711), port_range(0)
    (range(20000, 20100), range(4711, 4712), range(0, 1))
    """
    first, dash, last = str(text).partition("-")
    try:
        ports = range(int(first), int(last if dash else first) + 1)
    except ValueError:
        ports = range(0)
    if not ports or ports[0] < 0 or ports[-1] > _LAST_PORT or (ports[0] == 0 and len(ports) > 1):
        raise SettingError(
            f"{text!r} is not a port or a range of ports",
            hint="write 4711, 20000-20099, or 0 for any",
        )
    return ports


@dataclass(frozen=True)
class Tls:
    """Certificates with which all endpoints of a flow speak TLS: files in PEM format, at the same place on
    every machine that runs the driver, a host or a courier.

    >>> Tls("/etc/penstock/node.crt", "/etc/penstock/node.key", "/etc/penstock/ca.crt").mutual
    True
    """

    certificate: str
    """The certificate of the machine, or one for all of them. It is shown as a server and as a client."""
    key: str
    """Its private key."""
    authority: str
    """The certificate of the authority that has signed all of them. No other one is trusted."""
    name: str | None = None
    """A DNS name that is in every certificate, and is asked for instead of the address: machines come and go,
    and with them addresses. None: each certificate must name the address that its machine is reached at."""
    mutual: bool = True
    """Whether clients must show a certificate, too. Without that, whoever reaches an endpoint can have it
    receive a request before its token is looked at."""


@dataclass(frozen=True)
class Settings:
    """How a started flow behaves.

    >>> Settings(heartbeat_ms=200).driver_lost_ms
    30000
    """

    heartbeat_ms: int = 500
    """Milliseconds between a host's questions whether the driver lives and still counts on it."""

    host_lost_ms: int = 5_000
    """Milliseconds without a heartbeat after which a host is given up: its slots go to others, and it is
    started again. Ten heartbeats of a loaded machine may come late. A heartbeat needs Python's lock:
    raise this if user code holds it for seconds on end, as a long regular expression does."""

    driver_lost_ms: int = 30_000
    """Milliseconds without an answer from the driver after which a host ends itself. Longer than a
    garbage collection of the driver, since all hosts would go at once."""

    host_start_ms: int = 120_000
    """Milliseconds to wait for a host to come up. An executor may have to be started for it."""

    rpc_timeout_ms: int = 120_000
    """Milliseconds that one call to a host may take, restoring its state included."""

    exchange_timeout_ms: int = 3_600_000
    """Milliseconds that one courier's channel may stay open. A backfill is a single, long epoch."""

    epoch_runs: int = 8
    """Runs of an epoch, one after the other while hosts die under it, before the query fails. Hosts that
    die once a second, for whatever reason, are survived; one that an epoch itself kills ends the query
    within half a minute."""

    driver_port: int = 0
    """Port of the driver's registry. 0: one of `ports`."""

    ports: str = "0"
    """Ports that the driver, hosts, live couriers and the service of local functions may listen on, such as
    20000-20099 where a firewall has these open. Each takes one that is free on its machine: give as many as
    there are of them on one machine and some more, out of the range that the system itself gives to
    connections (on Linux 32768 to 60999). 0 lets the system choose."""

    progress_kept: int = 200
    """Epochs that `query.progress` remembers."""

    host_memory_mb: int | None = None
    """Megabytes of state that a host keeps between epochs. Beyond that, the entries that were not
    touched for longest are dropped, and read again from the store when rows need them. None: no limit."""

    host_staged_mb: float | None = None
    """Megabytes of an epoch's input that a host holds before it is applied. Beyond that couriers are
    made to wait, one of them at a time excepted, which may bring as much again; one that would bring
    more fails the query. None: a quarter of the memory that the host's process may have, since rows
    are copied while they are applied, and state, Spark and other hosts need theirs."""

    host_cores: int | None = None
    """Worker threads of a host. None: as many as Spark gives a task (`spark.task.cpus`)."""

    host_executors: HostExecutors | None = None
    """Whether each host has a Spark executor of its own, which comes and goes with it, or shares executors
    with couriers and other hosts. Own ones need dynamic allocation. None: own where that is on, since an
    executor with a host on it is never idle."""

    host_executor_mb: int | None = None
    """Megabytes of an executor of a host's own: 512 of them for its JVM, the rest for the host. None: as
    Spark's settings say of all executors."""

    host_parts: int | None = None
    """Parts into which a host cuts its slots, so that several workers find something to do. None: one
    for a host with one worker, else two for each worker."""

    chunk_rows: int = 65_536
    """Rows of a chunk: what goes at a time through a chain on one host, and at least through a step
    with several workers. Smaller chunks spread work better, and each has its cost; 1 is allowed."""

    live_window_mb: float = 64.0
    """Megabytes of rows that a live courier holds, or has sent and no host has applied. Beyond that it polls
    no more, so that pressure reaches the source. Some seconds of a fast source, and little of a task's
    memory."""

    live_pause_ms: float = 20.0
    """Milliseconds from one chunk of a live courier to the next, at most. The pause follows what chunks cost
    and is 3 to 5 ms at some ten thousand rows a second; only beyond some hundred thousand it comes to this.
    Lower means less latency there, and more chunks to pay for."""

    live_partitions_ms: float = 30_000.0
    """Milliseconds from one look for new partitions of a live flow's sources to the next. To read them, rows
    stop for a moment: topics seldom grow."""

    schedule: ScheduleName = "ct"
    """The operator that a host's worker turns to next: the one with the lowest throughput (ct), the
    last of the chain (lp), the one with the longest work ahead (et), or the first whose output queue
    has room (qst)."""

    compact_epochs: int = 32
    """Epochs whose deltas are merged at a time, in the background. More of them make reading from
    the store slower, fewer make more work."""

    compact_stalled_ms: int = 60_000
    """Milliseconds in which a host reads or writes no file of its part of a compaction, after which
    another host gets that part. A file is some 32 MB at most: longer than a slow store needs for it."""

    keep_epochs: int = 100
    """Versions of the state that are kept to be looked at. The newest two always are."""

    dead_letters_mb: int = 1_024
    """Megabytes of dead letters that a checkpoint keeps. Beyond that the oldest go: rows that fail day
    after day, and that nobody looks at, must not fill the store."""

    tls: Tls | None = None
    """Certificates, for TLS between all parts of the flow. None: tokens and rows cross the network as they
    are."""

    request_mb: float = 256.0
    """Megabytes that the body of one request may have; rows of channels and streams are no such body. A
    courier tells the driver in one of all rows that it has set aside in an epoch."""

    control_token_file: str | None = None
    """A file with the token that `penstock ctl` must show, such as a mounted secret, for those who steer from
    another machine. None: the environment's PENSTOCK_CONTROL_TOKEN, or else a random one, which only the
    user who started the flow can read, on the driver's machine."""

    faults: tuple[Fault, ...] = ()
    """For tests and trials: what happens at which points of this flow's processes (see
    `penstock.testing`)."""

    def __post_init__(self) -> None:
        counts = {n: getattr(self, n) for n in ("host_cores", "host_parts", "chunk_rows")}
        for name, count in counts.items():
            if count is not None and count < 1:
                raise SettingError(f"{name} is {count}", hint="use 1 or more")
        if self.host_lost_ms < 2 * self.heartbeat_ms:
            raise SettingError(
                f"host_lost_ms is {self.host_lost_ms}, less than two heartbeats (heartbeat_ms is "
                f"{self.heartbeat_ms})",
                hint="use ten times heartbeat_ms, at least twice",
            )
        for ports in (self.driver_port, self.ports):
            port_range(ports)
        if self.host_staged_mb is not None and self.host_staged_mb <= 0:
            raise SettingError(
                f"host_staged_mb is {self.host_staged_mb}", hint="use more than 0, or None"
            )
        for name in ("request_mb", "live_window_mb", "live_pause_ms", "live_partitions_ms"):
            if getattr(self, name) <= 0:
                raise SettingError(f"{name} is {getattr(self, name)}", hint="use more than 0")
        if self.host_executors not in (None, *get_args(HostExecutors)):
            raise SettingError(
                f"host_executors is {self.host_executors!r}", hint='use "own", "shared" or None'
            )
        if self.host_executor_mb is not None and self.host_executor_mb <= HOST_JVM_MB:
            raise SettingError(
                f"host_executor_mb is {self.host_executor_mb}",
                hint=f"use more than {HOST_JVM_MB}, which the executor's JVM takes, or None",
            )
        if self.schedule not in get_args(ScheduleName):
            raise SettingError(
                f"unknown schedule {self.schedule!r}",
                hint=f"use one of {', '.join(get_args(ScheduleName))}",
            )

    @property
    def heartbeat_timeout_ms(self) -> int:
        """Milliseconds that one heartbeat waits for its answer; the next one asks again."""
        return max(1_000, 2 * self.heartbeat_ms)

    @property
    def workers(self) -> int:
        """Worker threads of a host."""
        return self.host_cores or 1

    def parts(self, slots: int) -> int:
        """Parts of a host's state, for a step with this number of slots.

        >>> Settings().parts(64), Settings(host_cores=2).parts(64), Settings(host_cores=4).parts(1)
        (1, 4, 1)
        """
        wanted = self.host_parts or (1 if self.workers == 1 else _PARTS_PER_WORKER * self.workers)
        return min(wanted, slots)
