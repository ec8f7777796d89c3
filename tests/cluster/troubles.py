"""Failures of a flow on a cluster, and of the cluster, one function each."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import psutil

from penstock.console.cluster.cluster import Cluster, Worker
from tests.cluster.flow_process import Start
from tests.cluster.flows import FlowProcess, await_condition, executor_of

STEP = "aggregate-1"


@dataclass(frozen=True)
class Scene:
    """A flow on a cluster, and random choices of its parts."""

    cluster: Cluster
    flow: FlowProcess
    started: Start
    chance: random.Random

    def worker(self) -> Worker:
        """A running worker, with a host on it if possible."""
        alive = [one for one in self.cluster.workers if one.process.is_running()]
        hosts = set(self.flow.hosts().values())
        with_hosts = [one for one in alive if hosts & {task.pid for task in one.children()}]
        return self.chance.choice(with_hosts or alive)

    def task(self, hosts: bool = True) -> int:
        """The process of a host, or of a courier in live mode."""
        tasks = self.flow.hosts() if hosts or not self.started.live else self.flow.couriers()
        await_condition(lambda: tasks or self.flow.hosts())
        return self.chance.choice(sorted((tasks or self.flow.hosts()).values()))


def an_executor_with_a_host_is_killed(scene: Scene) -> None:
    with suppress(psutil.NoSuchProcess, StopIteration):
        executor_of(scene.task()).kill()


def an_executor_with_a_courier_is_killed(scene: Scene) -> None:
    with suppress(psutil.NoSuchProcess, StopIteration):
        executor_of(scene.task(hosts=False)).kill()


def all_executors_are_killed(scene: Scene) -> None:
    for executor in scene.cluster.executors():
        with suppress(psutil.NoSuchProcess):
            executor.kill()


def a_host_is_killed(scene: Scene) -> None:
    with suppress(psutil.NoSuchProcess):
        psutil.Process(scene.task()).kill()


def an_executor_is_stopped_for_a_while(scene: Scene) -> None:
    with suppress(psutil.NoSuchProcess, StopIteration):
        executor = executor_of(scene.task())
        executor.suspend()
        time.sleep(scene.started.host_lost_ms / 1000 + 2)  # the silence that is tested
        executor.resume()


def a_machine_is_stopped_for_a_while(scene: Scene) -> None:
    worker = scene.worker()
    worker.stop()
    time.sleep(scene.started.host_lost_ms / 1000 + 2)
    worker.go_on()


def a_machine_fails_and_another_comes(scene: Scene) -> None:
    scene.worker().kill()
    scene.cluster.start_worker()


def a_worker_is_killed_and_another_comes(scene: Scene) -> None:
    """Its executors end by themselves, some time later."""
    scene.worker().kill(executors=False)
    scene.cluster.start_worker()


def a_worker_is_terminated_and_another_comes(scene: Scene) -> None:
    scene.worker().terminate()
    scene.cluster.start_worker()


def the_master_is_killed_and_comes_again(scene: Scene) -> None:
    scene.cluster.kill_master()
    scene.cluster.start_master()


def the_driver_is_killed_and_started_again(scene: Scene) -> None:
    scene.flow.kill()
    scene.flow.start(scene.started)


def slots_move(scene: Scene) -> None:
    hosts = sorted(scene.flow.hosts()) or [f"{STEP}/0"]
    scene.flow.ask(f"query.move({STEP!r}, range({scene.chance.randrange(1, 16)}), {hosts[-1]!r})")


def hosts_come_and_go(scene: Scene) -> None:
    scene.flow.ask(f"query.scale({STEP!r}, {scene.chance.choice([1, 2, 3, 4])})")


Trouble = Callable[[Scene], None]
TROUBLES: tuple[Trouble, ...] = (
    an_executor_with_a_host_is_killed,
    an_executor_with_a_courier_is_killed,
    all_executors_are_killed,
    a_host_is_killed,
    an_executor_is_stopped_for_a_while,
    a_machine_is_stopped_for_a_while,
    a_machine_fails_and_another_comes,
    a_worker_is_killed_and_another_comes,
    a_worker_is_terminated_and_another_comes,
    the_master_is_killed_and_comes_again,
    the_driver_is_killed_and_started_again,
)
TREATMENTS: tuple[Trouble, ...] = (slots_move, hosts_come_and_go)
