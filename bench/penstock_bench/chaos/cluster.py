"""The environment of a run on a cluster: a standalone cluster, Kafka and an object store, all of which can
fail.

If this process may create network namespaces, each worker runs in one of its own, and everything else in
another, so that the network between them can fail too.

The store is reached through a proxy that injects faults. Only the run's supervisor bypasses it.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace

import psutil

from penstock.console.cluster.cluster import Cluster, Machine, Shape, running_cluster
from penstock.spark.s3a import s3a_jars
from penstock.state.store.files import Files
from penstock.state.store.places import Place
from penstock.state.store.s3 import s3_options
from penstock_bench.broker import Broker, running_broker
from penstock_bench.chaos.arena import MARK, Bearings, ChaosArena
from penstock_bench.chaos.kinds import Need, Trouble, Whom
from penstock_bench.chaos.load import PARTITIONS, TOPIC
from penstock_bench.network import Network, not_allowed
from penstock_bench.report import Show
from penstock_bench.s3_faults import FaultProxy, S3Fault, faulty
from penstock_bench.s3_server import S3Server, running_s3

_HEAD, _WORKERS = "head", ("one", "two")
SHAPE = Shape(workers=len(_WORKERS), cores=8, memory="3g")
EXECUTOR_CORES, EXECUTOR_MEMORY = 4, "700m"
_CONF = {
    "spark.executor.cores": str(EXECUTOR_CORES),
    "spark.executor.memory": EXECUTOR_MEMORY,
    # Hundreds of executors die here, and none of it is the application's fault.
    "spark.deploy.maxExecutorRetries": "-1",
    "spark.task.maxFailures": "16",
}


_OF_THE_STORE: dict[Trouble, tuple[S3Fault, ...]] = {
    "store slow": (S3Fault("slow", seconds=0.15),),
    "store failing": (S3Fault("error", 0.3, status=500), S3Fault("error", 0.3, status=503)),
    "store throttled": (S3Fault("throttle", 0.5),),
    "store resets": (S3Fault("reset", 0.2), S3Fault("lost", 0.2), S3Fault("cut", 0.2)),
}


class ClusterGround:
    """The `Ground` of a running cluster, broker and object store."""

    def __init__(
        self,
        arena: ChaosArena,
        cluster: Cluster,
        broker: Broker,
        store: S3Server,
        proxy: FaultProxy,
        network: Network | None,
    ) -> None:
        self.offers: tuple[Need, ...] = ("burst", "process", "cluster")
        if network is not None:
            self.offers += ("network",)
        self._network = network
        self._arena, self._cluster, self._broker = arena, cluster, broker
        self._store, self._proxy = store, proxy
        self._producer: subprocess.Popen[bytes] | None = None
        s3a = {
            f"spark.hadoop.fs.s3a.{name}": value
            for name, value in store.settings(proxy.endpoint).items()
        }
        # Only the driver writes Spark's log to S3. Executors restart often, so they are not sent AWS's large
        # client, only the committers that the driver chooses for files.
        jars = s3a_jars().split(",")
        s3a["spark.driver.extraClassPath"] = os.pathsep.join(jars)
        s3a["spark.jars"] = next(jar for jar in jars if "spark-hadoop-cloud" in jar)
        folder = f"s3a://{store.bucket}/chaos"
        at = {"spark.driver.host": cluster.shape.address}
        self.bearings = Bearings(folder, cluster.master, broker.servers, _CONF | at | s3a)

    def log(self) -> Files:
        return Files(
            Place(f"s3://{self._store.bucket}/chaos", s3_options(self._store.settings())[0])
        )

    def processes(self, whom: Whom) -> list[list[psutil.Process]]:
        cluster = self._cluster
        workers = [worker for worker in cluster.workers if worker.process.is_running()]
        processes: dict[Whom, list[list[psutil.Process]]] = {
            "executor": [[executor] for executor in cluster.executors()],
            "worker": [[worker.process] for worker in workers],
            "machine": [[worker.process, *_below(worker.process)] for worker in workers],
            "master": [[cluster.master_process]] if cluster.master_process else [],
            "broker": _alive(self._broker.process),
            "object store": _alive(self._store.process),
        }
        return processes[whom]

    def revive(self, whom: Whom) -> None:
        if whom in ("worker", "machine"):
            alive = [worker for worker in self._cluster.workers if worker.process.is_running()]
            for _ in range(SHAPE.workers - len(alive)):
                self._cluster.start_worker()
        elif whom == "master":
            self._cluster.start_master()
        elif whom == "broker":
            self._broker.process.wait()
            self._broker.start()
        elif whom == "object store":
            self._store.process.wait()
            self._store.start()

    def trouble(self, what: Trouble, chance: random.Random) -> Callable[[], object]:
        if what in _OF_THE_STORE:
            self._proxy.order(*_OF_THE_STORE[what])
            return self._proxy.clear
        assert self._network is not None
        (one, other), trouble = chance.sample((_HEAD, *_WORKERS), 2), ExitStack()
        if what == "network slow":
            trouble.enter_context(self._network.slow(one, other, chance.uniform(20, 200)))
        elif chance.random() < 0.3:
            trouble.enter_context(self._network.cut_one_way(one, other))
        else:
            trouble.enter_context(self._network.cut(one, other))
        return trouble.close

    def load(self) -> None:
        with (self._arena.root / "produce.log").open("ab") as log:
            self._producer = subprocess.Popen(
                [sys.executable, "-m", "penstock_bench.chaos.produce", str(self._arena.root)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | {MARK: str(self._arena.root)},
                start_new_session=True,
            )

    def end(self) -> None:
        if self._producer is not None:
            self._producer.kill()
            self._producer.wait()


def _alive(process: subprocess.Popen[bytes]) -> list[list[psutil.Process]]:
    return [[psutil.Process(process.pid)]] if process.poll() is None else []


def _below(process: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.Error):
        return process.children(recursive=True)
    return []


@contextmanager
def cluster_ground(arena: ChaosArena, show: Show) -> Iterator[ClusterGround]:
    """Start the environment of a run on a cluster; it ends with the block."""
    with ExitStack() as ending:
        network, machines, address = None, list[Machine](), "127.0.0.1"
        if reason := not_allowed():
            show(f"this run has no network faults: {reason}")
        else:
            network = ending.enter_context(Network(_HEAD, *_WORKERS))
            ending.enter_context(network.entered(_HEAD))
            address = network.address(_HEAD)
            machines = [
                Machine(network.address(name), tuple(network.command(name, ())))
                for name in _WORKERS
            ]
        broker = ending.enter_context(running_broker(address))
        broker.create(TOPIC, PARTITIONS)
        shape, folder = replace(SHAPE, address=address), arena.root / "cluster"
        cluster = ending.enter_context(running_cluster(shape, folder, machines))
        store = ending.enter_context(running_s3())
        proxy = ending.enter_context(faulty(store.endpoint, address=address))
        ground = ClusterGround(arena, cluster, broker, store, proxy, network)
        ending.callback(ground.end)
        yield ground
