from __future__ import annotations

import logging
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from penstock import codec
from penstock.control.journal.entry import Entry
from penstock.driver import journal_writer
from penstock.driver.journal_writer import JournalWriter, StartWriter
from penstock.driver.progress import EpochProgress
from penstock.errors import CheckpointError, SettingError
from penstock.observe import recorder as recorder_module
from penstock.observe.moment import EpochMoment, Look, Moment, MomentMaker
from penstock.observe.recorder import Recorder
from penstock.observe.recording import (
    FlowFacts,
    KeptRecording,
    Thinner,
    kept_recording,
    line_of,
    starts,
    tally_of,
    whole_recording,
)
from penstock.spans import Span
from penstock.state.store.store import Store
from tests.observe.made_up import (
    FACTS,
    START_MS,
    control_facts,
    epoch,
    look,
    moved,
    recording,
)


class Query:
    """A query that a recorder looks at: one look after another, and its epochs so far."""

    def __init__(self, *looks: Look | Exception) -> None:
        self.looks = list(looks)
        self.epochs: list[EpochProgress] = []
        self.written: list[FlowFacts | Moment] = []

    def look(self) -> Look:
        found = self.looks.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    def recorder(self) -> Recorder:
        return Recorder(FACTS, self.look, lambda: self.epochs, list, self.written.append)


def test_a_moment_has_the_epochs_since_the_last_one() -> None:
    query = Query(look(1.0), look(2.0), look(3.0))
    recorder = query.recorder()
    query.epochs = [epoch(0, 0.4, rows=80), epoch(1, 0.9, rows=120)]
    first = recorder.take()
    query.epochs.append(epoch(2, 1.9, rows=300, mean_ms=600.0))
    second, third = recorder.take(), recorder.take()
    assert [[e.epoch for e in m.epochs] for m in (first, second, third)] == [[0, 1], [2], []]
    assert (first.rows, second.rows, third.rows) == (200, 300, 0)
    assert (second.rate, third.rate) == (
        300.0,
        None,
    )  # rows since the last epoch, one second before
    assert second.latency is not None
    assert second.latency.mean_ms == 600.0
    assert (third.epoch, third.latency) == (2, None)
    assert recorder.moments() == query.written[1:] == [first, second, third]
    assert recorder.moments(since_ms=START_MS + 1_500) == [second, third]


def test_a_moment_shows_hosts_and_slots() -> None:
    maker = MomentMaker(START_MS)
    control = control_facts(
        ["clicks/0", "clicks/1"], health="severe", offload={"functions": 3, "redirected": 40.0}
    )
    seen = look(1.0, control=control, hosts_up={"clicks/0": 7})
    moment = maker.make(seen, [epoch(0, 0.9, migration=moved(1, 2))], 1, 1)
    step = moment.steps[0]
    assert step.owner == (0, 0, 0, 0, 1, 1, 1, 1)
    assert step.rates == (125,) * 8
    assert (step.health, step.functions, moment.hosts, moment.functions) == ("severe", 3, 1, 3)
    first, second = step.hosts
    assert (first.slots, first.entries, first.rows, first.service_rate) == (4, 10, 50, 2_000.0)
    assert (second.up, second.entries) == (False, 0)
    assert moment.moves.handovers[0].slots == (1, 2)
    assert (moment.moves.fetched_keys, moment.moves.fetched_bytes) == (5, 700)


def test_slots_have_rates_without_control() -> None:
    moment = MomentMaker(START_MS).make(look(2.0), [epoch(0, 1.9, rows=80)], 0, 0)
    assert moment.steps[0].rates == (5,) * 8  # 10 records a slot, in 2 s
    assert (moment.policy, moment.steps[0].health) == (None, None)


def test_state_is_remembered_between_epochs() -> None:
    maker = MomentMaker(START_MS)
    maker.make(look(1.0), [epoch(0, 0.9)], 0, 0)
    assert maker.make(look(2.0), [], 0, 0).steps[0].hosts[0].state_bytes == 4_000


def test_windows_of_the_sla_are_counted() -> None:
    kept = recording(seconds=12, burst=range(5, 8))
    assert [m.windows for m in kept.kept[:3]] == [0, 0, 1]
    assert sum(m.windows for m in kept.kept) == 10
    assert sum(m.windows - m.kept for m in kept.kept) == 3


def test_an_error_costs_a_moment_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    query = Query(ValueError("odd"), look(2.0), look(3.0))
    recorder = query.recorder()
    with caplog.at_level(logging.WARNING, "penstock.observe"):
        recorder._take_safely()
    assert "was not recorded: odd" in caplog.text
    recorder.take()
    assert len(recorder.moments()) == 1


def test_watchers_get_every_moment_until_they_end() -> None:
    query, seen = Query(look(1.0), look(2.0)), list[Moment]()
    recorder = query.recorder()
    forget = recorder.watch(seen.append)
    first = recorder.take()
    forget()
    recorder.take()
    assert seen == [first]


def test_a_recorder_takes_a_last_moment() -> None:
    query = Query(look(1.0, state="stopped"))
    recorder = query.recorder()
    recorder.start()
    recorder.stop()
    assert not recorder.running
    assert [m.state for m in recorder.moments()] == ["stopped"]


def _written(store: Store, started_ms: float, moments: int) -> None:
    writer = StartWriter(store, "moments", started_ms, line_of)
    writer(codec.from_plain(codec.to_plain(FACTS) | {"started_ms": started_ms}, FlowFacts))
    for moment in recording(moments).kept:
        writer(moment)
    writer.stop()


def test_a_recording_is_read_as_it_was_written(tmp_path: Path) -> None:
    store = Store(f"{tmp_path}/penstock")
    journal = JournalWriter(store)
    entries = [Entry(START_MS + at, 1, "clicks", "done", "moved") for at in (-5.0, 10.0, 9_000.0)]
    for entry in entries:
        journal(entry)
    journal.stop()
    _written(store, START_MS, 4)
    kept = kept_recording(store)
    assert list(kept.kept) == list(recording(4).kept)
    assert kept.facts == FACTS
    assert kept.entries() == entries[1:]
    assert [m.epoch for m in kept.moments(START_MS + 2_500)] == [3, 4]
    _written(store, START_MS + 5_000, 2)
    assert starts(store) == [START_MS, START_MS + 5_000]
    assert kept_recording(store).entries() == entries[2:]
    assert kept_recording(store, START_MS).entries() == entries[1:2]
    with pytest.raises(SettingError, match="no recording of a start"):
        kept_recording(store, 1.0)


def test_a_recording_ends_where_it_is_damaged(tmp_path: Path) -> None:
    store = Store(f"{tmp_path}/penstock")
    with pytest.raises(SettingError, match="no recording of a query"):
        kept_recording(store)
    _written(store, START_MS, 3)
    (name,) = (file.name for file in store.files.below("moments"))
    folder = name.rpartition("/")[0]
    store.files.write(f"{folder}/000001.jsonl-gz", b"not packed", durable=False)
    assert len(kept_recording(store).kept) == 3
    store.files.write(name, b"", durable=False)
    with pytest.raises(CheckpointError, match="no readable beginning"):
        kept_recording(store)


def test_a_long_run_has_few_moments_whose_sums_are_right() -> None:
    whole, thinner = recording(500, burst=range(100, 103)), Thinner(newest=50, older=16)
    for moment in whole.kept:
        thinner.take(moment)
        assert len(thinner.moments) < 100
    found = thinner.moments
    assert found[-50:] == list(whole.kept[-50:])
    for name in ("rows", "windows", "kept", "seconds"):
        assert sum(getattr(m, name) for m in found) == sum(getattr(m, name) for m in whole.kept)
    assert sum(len(h.slots) for m in found for h in m.moves.handovers) == 1
    assert max(moment.hosts for moment in found) == 3
    ends = [found[0].time_ms - 1000 * found[0].seconds, *(m.time_ms for m in found)]
    assert ends[0] == START_MS
    lengths = [1000 * moment.seconds for moment in found]
    assert [now - then for then, now in pairwise(ends)] == lengths
    assert max(len(moment.epochs) for moment in found) <= 8


def test_the_sums_of_a_run_do_not_depend_on_what_is_kept_of_it(tmp_path: Path) -> None:
    store = Store(f"{tmp_path}/penstock")
    _written(store, START_MS, 40)
    kept = kept_recording(store)
    shorter = KeptRecording(kept.facts, kept.kept[-5:], (), tally=kept.tally)
    assert tally_of(shorter).rows == tally_of(recording(40)).rows == 4_000


def test_a_running_query_gets_what_is_older_than_memory_from_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "_KEPT", 5)
    query, store = Query(*(look(float(n)) for n in range(1, 21))), Store(f"{tmp_path}/penstock")
    writer = StartWriter(store, "moments", START_MS, line_of)
    recorder = Recorder(FACTS, query.look, lambda: query.epochs, list, writer)
    for number in range(1, 21):
        query.epochs.append(epoch(number, number))
        recorder.take()
    writer.stop()
    assert [m.epoch for m in recorder.moments()] == [16, 17, 18, 19, 20]
    whole = whole_recording(recorder)
    assert [m.epoch for m in whole.moments()] == list(range(1, 21))
    assert tally_of(whole).rows == 2_000


def test_a_query_whose_checkpoint_cannot_be_read_has_its_last_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recorder_module, "_KEPT", 2)
    query, store = Query(*(look(float(n)) for n in range(1, 5))), Store(f"{tmp_path}/penstock")
    writer = StartWriter(store, "moments", START_MS, line_of)
    recorder = Recorder(FACTS, query.look, lambda: query.epochs, list, writer)
    for _ in range(4):
        recorder.take()
    assert whole_recording(recorder) is recorder  # nothing was written yet
    assert "Only the last hour of the recording can be read" in caplog.text
    writer.stop()


def test_spans_reach_watchers_and_are_not_recorded() -> None:
    query, seen = Query(look(1.0)), list[Moment]()
    recorder = query.recorder()
    recorder.watch(seen.append)
    query.epochs = [epoch(1, 0.9, spans=(Span(1, "driver", "seal", START_MS, 2.0),))]
    recorder.take()
    assert [span.name for span in seen[0].epochs[0].spans] == ["seal"]
    assert recorder.moments() == query.written[1:] == [replace(seen[0], epochs=_bare(seen[0]))]


def _bare(moment: Moment) -> tuple[EpochMoment, ...]:
    return tuple(replace(epoch, spans=()) for epoch in moment.epochs)


def _full_writer(
    store: Store, kind: str, seconds: int, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """The files of a start of so many seconds, with a file for each and room for about four of them."""
    monkeypatch.setattr(journal_writer, "_MOST_BYTES", 4_000)
    writer = StartWriter(store, kind, START_MS, line_of, every_s=-1.0)
    writer(FACTS)
    for item in recording(seconds).kept:
        writer(item)
        writer._writer.submit(int).result()  # the file is written
    writer.stop()
    return sorted(file.name.rpartition("/")[2] for file in store.files.below(kind))


def test_a_recording_that_is_too_long_loses_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(f"{tmp_path}/penstock")
    files = _full_writer(store, "moments", 30, monkeypatch)
    assert files[0] == "000000.jsonl-gz"
    assert files[-1] == "000030.jsonl-gz"
    assert 3 < len(files) < 15
    assert sum(file.size for file in store.files.below("moments")) <= 4_000
    kept = kept_recording(store)
    assert kept.facts == FACTS
    epochs = [moment.epoch for moment in kept.kept]
    assert epochs == list(range(32 - len(files), 31))


def test_events_that_are_too_many_end_with_one_log_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    files = _full_writer(Store(f"{tmp_path}/penstock"), "events", 30, monkeypatch)
    assert [int(name[:6]) for name in files] == list(range(len(files)))
    assert len(files) < 15
    assert caplog.text.count("Later ones are not recorded") == 1
