"""Reading NEXMark events from files, and replaying them in batches."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import InputError, SettingError, StoreError
from penstock_bench.workloads.nexmark.columns import SCHEMAS, STREAMS
from penstock_bench.workloads.nexmark.config import NexmarkConfig
from penstock_bench.workloads.nexmark.files import TimedStream, chunked, merge, read
from penstock_bench.workloads.nexmark.generator import events, generate
from penstock_bench.workloads.nexmark.ndjson import ndjson_batches

NOON = datetime(2015, 7, 15, 12, tzinfo=UTC)
BID = {
    "auction": 1,
    "bidder": 2,
    "price": 3,
    "channel": "c",
    "url": "u",
    "date_time": "2015-07-15T12:00:00Z",
    "extra": "e",
}


def write_bids(folder: Path, *lines: dict[str, Any] | str | bytes) -> Path:
    raw = [
        line if isinstance(line, bytes) else (
            line if isinstance(line, str) else json.dumps(line)
        ).encode()
        for line in lines
    ]  # fmt: skip
    (folder / "bid.ndjson").write_bytes(b"\n".join(raw) + b"\n")
    return folder


@pytest.mark.parametrize("format", ["ndjson", "parquet"])
def test_what_was_generated_is_read(format: str, tmp_path: Path) -> None:
    config = NexmarkConfig(events=2_000)
    generate(config, tmp_path, format)  # type: ignore[arg-type]
    found, expected = read(tmp_path), events(config, 0, 2_000)
    assert list(found) == list(STREAMS)
    assert all(found[stream].equals(expected[stream]) for stream in STREAMS)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("2015-07-15T12:00:00Z", NOON),
        ("2015-07-15 12:00:00", NOON),
        ("2015-07-15T12:00:00.000", NOON),
        ("2015-07-15T14:00:00+02:00", NOON),
        ("2015-07-15 06:30:00.25-0530", NOON + timedelta(milliseconds=250)),
        ("2015-07-15T12:00:00.123456789Z", NOON + timedelta(microseconds=123_456)),
        ("2015-07-15T12:00:00.123456789", NOON + timedelta(microseconds=123_456)),
        ("2015-07-15", NOON - timedelta(hours=12)),
        (1_436_961_600_000, NOON),
        (1_436_961_600_000.0, NOON),
        (-1, datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC)),
        ("0001-01-01T00:00:00Z", datetime(1, 1, 1, tzinfo=UTC)),
        ("9999-12-31T23:59:59.999999Z", datetime.max.replace(tzinfo=UTC)),
        (None, None),
    ],
)
def test_forms_of_times(written: Any, expected: datetime | None, tmp_path: Path) -> None:
    """Alone, and in a file with another form of time."""
    for others in ([], [BID], [BID | {"date_time": 0}, BID]):
        rows = [*others, BID | {"date_time": written}]
        found = read(write_bids(tmp_path, *rows))["bid"].column("date_time")
        assert found[-1].as_py() == expected


def test_odd_text_survives(tmp_path: Path) -> None:
    texts = ['"', "\\", "\n\r\t", "\0", "😀 ñ 漢", "", " ", "{}", "null", "\u2028", "a" * 100_000]
    for ascii in (True, False):
        lines = [json.dumps(BID | {"extra": text}, ensure_ascii=ascii) for text in texts]
        assert read(write_bids(tmp_path, *lines))["bid"]["extra"].to_pylist() == texts


def test_nulls_gaps_and_extra_columns(tmp_path: Path) -> None:
    nothing = dict.fromkeys(BID)
    few = {"auction": 7}
    more = {"zone": {"a": [1, {"b": None}]}} | BID
    found = read(write_bids(tmp_path, BID, "", nothing, "  ", few, more, ""))["bid"]
    assert found.schema == SCHEMAS["bid"]
    assert found["auction"].to_pylist() == [1, None, 7, 1]
    assert found["date_time"].to_pylist() == [NOON, None, None, NOON]
    assert found["url"].to_pylist() == ["u", None, None, "u"]


def test_marks_and_line_ends_of_other_systems(tmp_path: Path) -> None:
    line = json.dumps(BID).encode()
    (tmp_path / "bid.ndjson").write_bytes(b"\xef\xbb\xbf" + line + b"\r\n" + line)
    assert read(tmp_path)["bid"].num_rows == 2


def test_missing_and_empty_files_have_no_rows(tmp_path: Path) -> None:
    (tmp_path / "bid.ndjson").touch()
    (tmp_path / "auction.ndjson").write_bytes(b"\n \n")
    found = read(tmp_path)
    assert [found[stream].num_rows for stream in STREAMS] == [0, 0, 0]
    assert [found[stream].schema for stream in STREAMS] == [SCHEMAS[s] for s in STREAMS]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"auction": 1', r"line 3 of .*bid\.ndjson is not JSON"),
        ("[1]", "line 3 .*is not a JSON object"),
        ("12", "line 3 .*is not a JSON object"),
        (BID | {"price": "12"}, 'line 3 .*: price is "12", which is not a 64-bit integer'),
        (BID | {"price": 1.5}, r"line 3 .*: price is 1\.5, which is not a 64-bit integer"),
        (BID | {"price": 2**63}, "line 3 .*: price is 9223372036854775808, which is not a 64-bit"),
        (BID | {"price": True}, "line 3 .*: price is true, which is not a 64-bit integer"),
        (
            BID | {"auction": float("nan")},
            "line 3 .*: auction is NaN, which is not a 64-bit integer",
        ),
        (BID | {"url": 5}, "line 3 .*: url is 5, which is not a string"),
        (BID | {"url": {"a": 1}}, r'line 3 .*: url is {"a": 1}, which is not a string'),
        (BID | {"url": "\ud83d"}, "line 3 .*: url is .*, which has an incomplete character"),
        (BID | {"date_time": "soon"}, 'line 3 .*: date_time is "soon", which is not a time'),
        (BID | {"date_time": ""}, 'line 3 .*: date_time is "", which is not a time'),
        (
            BID | {"date_time": "2015-02-30T00:00:00Z"},
            "line 3 .*: date_time is .* which is not a time",
        ),
        (BID | {"date_time": "0000-12-31T00:00:00Z"}, "line 3 .* not within the years 1 to 9999"),
        (BID | {"date_time": "9999-12-31T23:59:59-01:00"}, "line 3 .* not within the years"),
        (BID | {"date_time": 10**15}, "line 3 .* not within the years 1 to 9999"),
        (BID | {"date_time": -(10**17)}, "line 3 .* not within the years 1 to 9999"),
        (BID | {"date_time": True}, "line 3 .*: date_time is true, which is not a 64-bit integer"),
        (BID | {"date_time": [1]}, r"line 3 .*: date_time is \[1\], which is not a 64-bit integer"),
        (b'{"extra": "\xff"}', "line 3 .*is not UTF-8"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(
    line: dict[str, Any] | str | bytes, message: str, tmp_path: Path
) -> None:
    for good in (BID, BID | {"date_time": 5}):
        with pytest.raises(InputError, match=message):
            read(write_bids(tmp_path, good, "", line, good))


def test_lines_are_counted_over_blocks(tmp_path: Path) -> None:
    write_bids(tmp_path, *[BID] * 50, "{", *[BID] * 50)
    for block in (1, 100, 1000, 1 << 20):
        with pytest.raises(InputError, match="line 51 of"):
            list(ndjson_batches(tmp_path / "bid.ndjson", SCHEMAS["bid"], block))


def test_missing_columns_are_named(tmp_path: Path) -> None:
    short = {name: value for name, value in BID.items() if name not in ("price", "url")}
    with pytest.raises(InputError, match=r"bid\.ndjson has no column price, url"):
        read(write_bids(tmp_path, short))
    write_bids(tmp_path, short)
    info = chunked(tmp_path, tmp_path / "out", 10, {"bid": ["auction"]})
    assert info.rows == {"bid": 1}
    (tmp_path / "bid.ndjson").unlink()
    pq.write_table(pa.table({"auction": [1], "price": [2]}), tmp_path / "bid.parquet")
    with pytest.raises(
        InputError, match=r"bid\.parquet has no column bidder, channel.*it has auction"
    ):
        read(tmp_path)


def test_folders_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a folder"):
        read(tmp_path / "nowhere")
    with pytest.raises(InputError, match="has no events"):
        read(tmp_path)
    (tmp_path / "bid.parquet").write_bytes(b"not parquet")
    with pytest.raises(InputError, match=r"bid\.parquet is not a Parquet file"):
        read(tmp_path)
    (tmp_path / "bid.ndjson").touch()
    with pytest.raises(InputError, match="has bid twice"):
        read(tmp_path)
    (tmp_path / "bid.parquet").unlink()
    (tmp_path / "person.parquet").mkdir()
    with pytest.raises(InputError, match="is not a file"):
        read(tmp_path)


PARQUET_BIDS = {
    "auction": pa.array([1, 2**32 - 1], pa.uint32()),
    "bidder": pa.array([1.0, None], pa.float64()),
    "price": pa.array([5, None], pa.int8()),
    "channel": pa.array(["a", None]).dictionary_encode(),
    "url": pa.array(["u", "😀"], pa.large_string()),
    "date_time": pa.array([NOON, None], pa.timestamp("ms", "Europe/Paris")),
    "extra": pa.nulls(2),
    "more": pa.array([[1], []]),
}


def test_types_of_parquet(tmp_path: Path) -> None:
    pq.write_table(pa.table(PARQUET_BIDS), tmp_path / "bid.parquet")
    found = read(tmp_path)["bid"]
    assert found.schema == SCHEMAS["bid"]
    assert found.to_pylist()[0] == {
        "auction": 1, "bidder": 1, "price": 5, "channel": "a", "url": "u", "date_time": NOON,
        "extra": None,
    }  # fmt: skip
    assert found["auction"].to_pylist() == [1, 2**32 - 1]
    for times in (
        pa.array([NOON.replace(tzinfo=None), None], pa.timestamp("ns")),
        pa.array(["2015-07-15T12:00:00", None]),
        pa.array([1_436_961_600_000, None]),
    ):
        pq.write_table(pa.table(PARQUET_BIDS | {"date_time": times}), tmp_path / "bid.parquet")
        assert read(tmp_path)["bid"]["date_time"].to_pylist() == [NOON, None]
    before = pa.array([-1, -1000], pa.timestamp("ns"))
    pq.write_table(pa.table(PARQUET_BIDS | {"date_time": before}), tmp_path / "bid.parquet")
    assert read(tmp_path)["bid"]["date_time"].cast(pa.int64()).to_pylist() == [-1, -1]


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("price", pa.array(["5", "6"]), "column price of .* is string, which does not fit"),
        ("price", pa.array([1.5, 2.0]), "column price of .* is double, which does not fit"),
        ("auction", pa.array([1, 2**63], pa.uint64()), "column auction of .* is uint64"),
        ("url", pa.array([1, 2]), "column url of .* is int64, which does not fit"),
        ("date_time", pa.array([1.0, 2.0]), "column date_time of .* is double"),
        ("date_time", pa.array(["2015-07-15", "x"]), "row 2 of .*: date_time is 'x', which is no"),
        ("date_time", pa.array([0, 10**15]), "row 2 of .* not within the years 1 to 9999"),
        ("date_time", pa.array([0, 2**62], pa.timestamp("us")), "row 2 of .* not within the years"),
    ],
)
def test_parquet_that_does_not_fit(
    name: str, values: pa.Array, message: str, tmp_path: Path
) -> None:
    pq.write_table(pa.table(PARQUET_BIDS | {name: values}), tmp_path / "bid.parquet")
    with pytest.raises(InputError, match=message):
        read(tmp_path)


TIMES = st.one_of(st.none(), st.integers(0, 50))
TEXTS = st.one_of(st.none(), st.text(max_size=5))


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.none() | st.integers(-(2**63), 2**63 - 1), TEXTS, TIMES), max_size=30
    ),
    block=st.integers(1, 3000),
    ascii=st.booleans(),
)
def test_any_rows_are_read_whatever_the_blocks(
    rows: list[tuple[int | None, str | None, int | None]],
    block: int,
    ascii: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("rows")
    lines = [
        json.dumps(BID | {"price": price, "extra": extra, "date_time": ms}, ensure_ascii=ascii)
        for price, extra, ms in rows
    ]
    write_bids(folder, *lines)
    found = pa.Table.from_batches(
        ndjson_batches(folder / "bid.ndjson", SCHEMAS["bid"], block), SCHEMAS["bid"]
    )
    assert found["price"].to_pylist() == [price for price, _, _ in rows]
    assert found["extra"].to_pylist() == [extra for _, extra, _ in rows]
    micros = [None if ms is None else ms * 1000 for _, _, ms in rows]
    assert found["date_time"].cast(pa.int64()).to_pylist() == micros


def replayed(into: Path, stream: str) -> list[list[dict[str, Any]]]:
    """The rows of each file of a stream, in the order of modification."""
    files = sorted((into / stream).iterdir(), key=lambda file: file.stat().st_mtime)
    assert files == sorted(files)
    return [pq.read_table(file).to_pylist() for file in files]


@settings(max_examples=60, deadline=None)
@given(
    people=st.lists(TIMES, max_size=30),
    auctions=st.lists(TIMES, max_size=30),
    bids=st.lists(TIMES, max_size=60),
    batch_rows=st.integers(1, 40),
    parts=st.integers(1, 3),
)
def test_replay_is_a_merge_by_time_in_equal_batches(
    people: list[int | None],
    auctions: list[int | None],
    bids: list[int | None],
    batch_rows: int,
    parts: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("replay")
    given: dict[str, list[int | None]] = {"person": people, "auction": auctions, "bid": bids}
    places, disorder = [], {}
    for s, (stream, times) in enumerate(given.items()):
        with (folder / f"{stream}.ndjson").open("w") as file:
            disorder[stream], newest = 0, -1
            for number, ms in enumerate(times):
                newest = newest if ms is None else max(newest, ms)
                disorder[stream] = max(disorder[stream], newest - ms if ms is not None else 0)
                places.append((newest, s, number))
                names = SCHEMAS[stream].names  # type: ignore[index]
                row = dict.fromkeys(names) | {names[0]: number, "date_time": ms}
                file.write(json.dumps(row) + "\n")
    needed = {"person": ["id"], "auction": ["date_time", "id"], "bid": ["auction"]}
    info = chunked(folder, folder / "out", batch_rows, needed, parts=parts)  # type: ignore[arg-type]

    places.sort()
    batches = [places[i : i + batch_rows] for i in range(0, len(places), batch_rows)] or [[]]
    known = [ms for times in given.values() for ms in times if ms is not None]
    assert info.batches == len(batches)
    assert info.rows == {stream: len(times) for stream, times in given.items()}
    assert info.disorder_ms == disorder
    assert (info.first_ms, info.last_ms) == ((min(known), max(known)) if known else (None, None))
    for s, (stream, columns) in enumerate(needed.items()):
        files = replayed(folder / "out", stream)
        assert len(files) == len(batches) * parts
        assert all(list(row) == columns for rows in files for row in rows)
        found = [sum(files[i : i + parts], []) for i in range(0, len(files), parts)]  # noqa: RUF017
        assert [[row[columns[-1]] for row in rows] for rows in found] == [
            [number for _, stream_number, number in batch if stream_number == s]
            for batch in batches
        ]


def test_replay_of_some_streams(tmp_path: Path) -> None:
    generate(NexmarkConfig(events=1_000, rate=100, disorder_ms=2_000), tmp_path)
    done: list[int] = []
    into = tmp_path / "out"
    info = chunked(tmp_path, into, 300, {"bid": ["price", "auction"]}, progress=done.append)
    assert info.batches == 4
    assert info.rows == {"bid": 920}
    assert 1_000 < info.disorder_ms["bid"] <= 2_000
    assert done[-1] == 920
    assert [folder.name for folder in into.iterdir()] == ["bid"]
    assert [len(rows) for rows in replayed(into, "bid")] == [300, 300, 300, 20]
    expected = read(tmp_path)["bid"].select(["price", "auction"]).to_pylist()
    assert [row for rows in replayed(into, "bid") for row in rows] == expected


def test_replay_holds_little_when_one_stream_is_far_ahead() -> None:
    """If all events have the same time or none, no event is held back."""

    def batches(count: int, time: int | None) -> Any:
        for _ in range(count):
            times = pa.array([time] * 10, pa.timestamp("us"))
            yield pa.record_batch({"date_time": times})

    for time in (5, None):
        parts = list(merge([TimedStream(batches(100, time)) for _ in range(3)]))
        assert max(len(part.order) for part in parts) <= 30
        assert [int(s) for part in parts for s in part.order] == [0] * 1000 + [1] * 1000 + [
            2
        ] * 1000


def test_replay_refuses_what_cannot_be(tmp_path: Path) -> None:
    write_bids(tmp_path, BID)
    with pytest.raises(SettingError, match="bid has no column prize"):
        chunked(tmp_path, tmp_path / "out", 10, {"bid": ["prize"]})
    with pytest.raises(SettingError, match="1 or more"):
        chunked(tmp_path, tmp_path / "out", 0, {"bid": ["price"]})
    chunked(tmp_path, tmp_path / "out", 10, {"bid": ["price"]})
    with pytest.raises(StoreError, match="has files already"):
        chunked(tmp_path, tmp_path / "out", 10, {"bid": ["price"]})
    with pytest.raises(StoreError, match="cannot be written"):
        chunked(tmp_path, tmp_path / "bid.ndjson", 10, {"bid": ["price"]})
