"""Settings of a flow: each with its unit and the reason for its default.

They are read once, when a flow starts, and passed down. Code below that reads no environment variables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

from penstock.errors import SettingError
from penstock.faults import Fault

ScheduleName = Literal["ct", "lp", "et", "qst"]
HostExecutors = Literal["own", "shared"]

AUTO: Final = "auto"
"""Value of `Settings.host_cores`: the number of workers is chosen by load."""
_MOST_AUTO = 8
"""Largest number of workers that is chosen by load. A host's state has a part for each of them."""

HOST_JVM_MB = 512
"""Megabytes for the JVM of a host's own executor. Spark requires at least 450. The host uses none of it."""
_LAST_PORT = 65_535
_PARTS_PER_WORKER = 2
"""Parts of a host's state per worker. With two, a worker finds a free part when another one is busy. More
parts cost one more call each."""


def port_range(text: int | str) -> range:
    """Parse a port, or a range given as first and last port. 0 means any free port.

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
            hint="write 4711, 20000-20099, or 0 for any free port",
        )
    return ports


@dataclass(frozen=True)
class Tls:
    """Certificates for TLS between all endpoints of a flow. They are PEM files, at the same path on every
    machine that runs the driver, a host or a courier.

    >>> Tls("/etc/penstock/node.crt", "/etc/penstock/node.key", "/etc/penstock/ca.crt").mutual
    True
    """

    certificate: str
    """Path of the machine's certificate, or of one that all machines share. It is used both as a server and
    as a client certificate."""
    key: str
    """Path of the certificate's private key."""
    authority: str
    """Path of the certificate of the authority that signed all of them. No other authority is trusted."""
    name: str | None = None
    """DNS name that every certificate contains. It is verified instead of the address, since addresses change
    when machines are replaced. None: each certificate must contain the address of its machine."""
    mutual: bool = True
    """Whether clients must present a certificate too. If not, anyone who can reach an endpoint can make it
    receive a request before the token is checked."""


@dataclass(frozen=True)
class Settings:
    """Tuning of a started flow: timeouts, limits, ports.

    >>> Settings(heartbeat_ms=200).driver_lost_ms
    30000
    """

    heartbeat_ms: int = 500
    """Milliseconds between a host's heartbeats to the driver."""

    host_lost_ms: int = 5_000
    """Milliseconds without a heartbeat after which a host counts as lost: its slots go to other hosts, and it
    is restarted. The default allows for ten late heartbeats, as on a loaded machine. A heartbeat needs the
    GIL: raise this if user code holds it for seconds, as a long regular expression does."""

    driver_lost_ms: int = 30_000
    """Milliseconds without a reply from the driver after which a host exits. Keep it longer than the
    driver's longest garbage collection: all hosts would exit at once."""

    host_start_ms: int = 120_000
    """Milliseconds to wait for a host to start. Its executor may have to start first."""

    rpc_timeout_ms: int = 120_000
    """Milliseconds that one call to a host may take. Restoring its state is included."""

    exchange_timeout_ms: int = 3_600_000
    """Milliseconds that one courier's channel may stay open. The default is an hour, since a backfill is a
    single, long epoch."""

    epoch_runs: int = 8
    """Attempts at one epoch before the query fails. An epoch is retried when hosts die during it. With 8, a
    query survives hosts that die once a second, and fails within half a minute if the epoch itself kills
    them."""

    driver_port: int = 0
    """Port of the driver's registry. 0: a free one of `ports`."""

    ports: str = "0"
    """Ports that the driver, hosts, live couriers and the service of local functions may listen on, such as
    20000-20099 if a firewall allows these. Each of them takes a port that is free on its machine. Allow some
    more than run on one machine, outside the range for outgoing connections (on Linux 32768 to 60999).
    0: the system chooses."""

    progress_kept: int = 200
    """Number of recent epochs in `query.progress`."""

    host_memory_mb: int | None = None
    """Megabytes of state that a host keeps in memory between epochs. Beyond that, it drops the least recently
    used entries and reads them from the store again when rows need them. None: no limit."""

    host_staged_mb: float | None = None
    """Megabytes of an epoch's input that a host holds before it applies them. Beyond that couriers wait,
    except one at a time, which may send as much again; if it sends more, the query fails. None: a quarter
    of the memory available to the host's process. Rows are copied while they are applied, and state, Spark
    and other hosts need memory too."""

    host_cores: int | Literal["auto"] | None = None
    """Worker threads of a host. None: the cores that Spark gives a task (`spark.task.cpus`). "auto": one
    while it has little to do, more while it is busy, its machine has idle cores, and more are faster."""

    host_executors: HostExecutors | None = None
    """Whether each host has a Spark executor of its own, which starts and stops with it ("own"), or shares
    executors with couriers and other hosts ("shared"). "own" needs dynamic allocation. None: "own" if dynamic
    allocation is on, since an executor that runs a host is never idle and would never be released."""

    host_executor_mb: int | None = None
    """Megabytes of memory for a host's own executor: 512 for its JVM, the rest for the host. None: the memory
    that Spark's settings give every executor."""

    host_parts: int | None = None
    """Parts into which a host divides its slots, so that several workers can run at once. None: one part
    for a host with one worker, two per worker for others, and with host_cores="auto" one for each worker that
    it may get."""

    chunk_rows: int = 65_536
    """Rows per chunk. A chain on one host processes chunks of this size; a step with several workers, chunks
    of at least this size. Smaller chunks balance the work better but add overhead. The minimum is 1."""

    piece_ms: float | None = 100.0
    """Milliseconds of work in a piece of a channel. A host applies a much larger channel in pieces, and can
    give some of them to hosts that get its slots, in the middle of an epoch. 0: as many pieces as possible.
    None: every channel is applied at once. Ordered flows and flows on one host never use pieces."""

    live_window_mb: float = 64.0
    """Megabytes of rows that a live courier may hold, or have sent without a host having applied them. At the
    limit it stops polling, so that the backpressure reaches the source. The default is a few seconds of a
    fast source."""

    live_pause_ms: float = 20.0
    """Maximum milliseconds between two chunks of a live courier. The actual pause depends on the cost of a
    chunk: 3 to 5 ms at tens of thousands of rows per second, and this maximum only beyond some hundred
    thousand. A lower maximum reduces the latency there, at the cost of more chunks."""

    live_partitions_ms: float = 30_000.0
    """Milliseconds between two checks for new partitions of a live flow's sources. Rows pause for a moment
    when new partitions are added, and topics seldom grow."""

    schedule: ScheduleName = "ct"
    """Order in which a host's workers choose operators: the one with the lowest throughput first (ct), the
    last of the chain first (lp), the one with the most work ahead first (et), or the first one whose output
    queue has room (qst)."""

    compact_epochs: int = 32
    """Number of epochs whose deltas one background compaction merges. A higher number makes reads from the
    store slower; a lower one makes more work."""

    compact_stalled_ms: int = 60_000
    """Milliseconds without progress after which another host takes over a host's part of a compaction. Keep
    it longer than a slow store needs for one file of about 32 MB."""

    keep_epochs: int = 100
    """Number of versions of the state to keep for inspection. The newest two are always kept."""

    dead_letters_mb: int = 1_024
    """Megabytes of dead letters that a checkpoint keeps. Beyond that the oldest are deleted, so that rows
    that keep failing unnoticed do not fill the store."""

    tls: Tls | None = None
    """Certificates for TLS between all parts of the flow. None: tokens and rows cross the network
    unencrypted."""

    request_mb: float = 256.0
    """Maximum megabytes in the body of one request. Rows in channels and streams do not count. The largest
    requests are a courier's reports of all rows that it set aside in an epoch."""

    observed_metrics: bool = False
    """Whether the progress events of Spark's `StreamingQueryListener` have Penstock's figures: the observed
    metrics "penstock". Off by default, since each output row then passes one more operator of Spark. Live
    flows have no such events."""

    control_token_file: str | None = None
    """Path of a file with the token that `penstock ctl` needs, such as a mounted secret, for control from
    another machine. None: the environment variable PENSTOCK_CONTROL_TOKEN, else a random token in a file on
    the driver's machine that only the user who started the flow can read."""

    faults: tuple[Fault, ...] = ()
    """Faults to inject at named points of the flow's processes, for tests and trials (see
    `penstock.testing`)."""

    def __post_init__(self) -> None:
        counts = {n: getattr(self, n) for n in ("host_cores", "host_parts", "chunk_rows")}
        for name, count in counts.items():
            if name == "host_cores" and isinstance(count, str):
                if count != AUTO:
                    raise SettingError(f"host_cores is {count!r}", hint='use a number, or "auto"')
            elif count is not None and count < 1:
                raise SettingError(f"{name} is {count}", hint="use 1 or more")
        if self.host_lost_ms < 2 * self.heartbeat_ms:
            raise SettingError(
                f"host_lost_ms is {self.host_lost_ms}, less than two heartbeats "
                f"(heartbeat_ms is {self.heartbeat_ms})",
                hint="set host_lost_ms to at least twice heartbeat_ms, better ten times",
            )
        for ports in (self.driver_port, self.ports):
            port_range(ports)
        if self.host_staged_mb is not None and self.host_staged_mb <= 0:
            raise SettingError(f"host_staged_mb is {self.host_staged_mb}", hint="use more than 0")
        if self.piece_ms is not None and self.piece_ms < 0:
            raise SettingError(f"piece_ms is {self.piece_ms}", hint="use 0 or more, or None")
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
                hint=f"use more than {HOST_JVM_MB}: the executor's JVM takes {HOST_JVM_MB}",
            )
        if self.schedule not in get_args(ScheduleName):
            raise SettingError(
                f"unknown schedule {self.schedule!r}",
                hint=f"use one of {', '.join(get_args(ScheduleName))}",
            )

    @property
    def heartbeat_timeout_ms(self) -> int:
        """Milliseconds that one heartbeat waits for its reply before the next one is sent."""
        return max(1_000, 2 * self.heartbeat_ms)

    @property
    def workers(self) -> int:
        """Worker threads of a host; 1 if they are chosen by load: see `most_workers`."""
        return 1 if self.host_cores == AUTO else self.host_cores or 1

    def most_workers(self, cores: float) -> int:
        """Largest number of worker threads of a host whose process may use this many cores.

        >>> Settings(host_cores="auto").most_workers(4.0), Settings(host_cores=2).most_workers(4.0)
        (4, 2)
        """
        if self.host_cores != AUTO:
            return self.workers
        return max(1, min(int(cores), _MOST_AUTO))

    def parts(self, slots: int, workers: int | None = None) -> int:
        """Number of parts of a host's state, for a step with `slots` slots and up to this many workers.

        >>> Settings().parts(64), Settings(host_cores=2).parts(64), Settings(host_cores=4).parts(1)
        (1, 4, 1)
        >>> Settings(host_cores="auto").parts(64, workers=4)
        4
        """
        most = workers or self.workers
        # Fewer parts cost fewer calls, which matters while one worker has them all.
        each = 1 if most == 1 or self.host_cores == AUTO else _PARTS_PER_WORKER
        wanted = self.host_parts or each * most
        return min(wanted, slots)
