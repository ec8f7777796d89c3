"""The NEXMark generator: canonical proportions and skew, independent of the chunks."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import SettingError, StoreError
from penstock_bench.workloads.draws import Draws
from penstock_bench.workloads.nexmark.columns import SCHEMAS, STREAMS
from penstock_bench.workloads.nexmark.config import NexmarkConfig
from penstock_bench.workloads.nexmark.generator import events, generate, ndjson_lines
from penstock_bench.workloads.nexmark.shapes import EventTimes

CONFIG = NexmarkConfig(events=100_000)


@pytest.fixture(scope="module")
def made() -> dict[str, pa.Table]:
    return dict(events(CONFIG, 0, CONFIG.events).items())


def column(table: pa.Table, name: str) -> np.ndarray:
    values = table.column(name)
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.int64())
    return values.to_numpy()


def test_the_canonical_proportions_and_columns(made: dict[str, pa.Table]) -> None:
    assert {stream: table.num_rows for stream, table in made.items()} == {
        "person": 2_000,
        "auction": 6_000,
        "bid": 92_000,
    }
    assert all(made[stream].schema == SCHEMAS[stream] for stream in STREAMS)
    assert all(column.null_count == 0 for table in made.values() for column in table.columns)
    assert column(made["person"], "id").tolist() == list(range(1000, 3000))
    assert column(made["auction"], "id").tolist() == list(range(1000, 7000))


def test_it_makes_the_same_on_any_machine() -> None:
    """These digests only change when the generator is changed on purpose."""
    found = {}
    for config in (
        NexmarkConfig(events=5_000),
        NexmarkConfig(events=5_000, seed=2, rate=333, shape="sine", hot="zipf"),
    ):
        digest = hashlib.sha256()
        for table in events(config, 0, config.events).values():
            digest.update(ndjson_lines(table))
        found[config.seed] = digest.hexdigest()[:16]
    assert found == {1: "51b15ccdf3c3b219", 2: "0b9ba772a24c689e"}


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_an_event_does_not_depend_on_the_others(data: st.DataObject) -> None:
    hots: list[Literal["canonical", "zipf"]] = ["canonical", "zipf"]
    hot = data.draw(st.sampled_from(hots))
    config = NexmarkConfig(events=700, seed=data.draw(st.integers(0, 2)), hot=hot)
    cuts = sorted(data.draw(st.lists(st.integers(0, 700), max_size=4)))
    whole = events(config, 0, 700)
    for stream in STREAMS:
        parts = [
            events(config, a, b - a)[stream] for a, b in zip([0, *cuts], [*cuts, 700], strict=True)
        ]
        assert pa.concat_tables(parts).equals(whole[stream])


@pytest.mark.parametrize("format", ["ndjson", "parquet"])
@pytest.mark.parametrize("disorder_ms", [0, 40])
def test_files_do_not_depend_on_the_chunks(format: str, disorder_ms: int, tmp_path: Path) -> None:
    config = NexmarkConfig(events=3_000, rate=2_000, disorder_ms=disorder_ms)
    for chunk in (3_000, 64, 1_000_000):
        generate(config, tmp_path / str(chunk), format, chunk=chunk)  # type: ignore[arg-type]
    for stream in STREAMS:
        files = [tmp_path / str(chunk) / f"{stream}.{format}" for chunk in (3_000, 64, 1_000_000)]
        if format == "ndjson":
            assert len({file.read_bytes() for file in files}) == 1
        else:
            tables = [pq.read_table(file) for file in files]
            assert tables[0].equals(tables[1])
            assert tables[0].equals(tables[2])


def test_disorder_moves_events_by_at_most_that(tmp_path: Path) -> None:
    ordered = NexmarkConfig(events=5_000, rate=1_000)
    late = NexmarkConfig(events=5_000, rate=1_000, disorder_ms=500)
    generate(late, tmp_path, "parquet")
    found = pq.read_table(tmp_path / "bid.parquet")
    times = column(found, "date_time")
    behind_ms = (np.maximum.accumulate(times) - times) // 1000
    assert 300 < behind_ms.max() <= 500
    expected = events(ordered, 0, 5_000)["bid"]
    by = [(name, "ascending") for name in ("date_time", "auction", "bidder", "price", "extra")]
    assert found.sort_by(by).equals(expected.sort_by(by))


def test_seeds_differ_and_may_be_any_64_bits() -> None:
    prices = [
        tuple(column(events(NexmarkConfig(100, seed=seed), 0, 100)["bid"], "price"))
        for seed in (0, 1, 2, -1, 2**64 - 2, -(2**63))
    ]
    assert len(set(prices)) == len(prices)


def test_canonical_hot_keys_move(made: dict[str, pa.Table]) -> None:
    bids = made["bid"]
    auction, bidder = column(bids, "auction") - 1000, column(bids, "bidder") - 1000
    assert np.mean(auction % 100 == 0) == pytest.approx(1 / 2 + 1 / 200, abs=0.01)
    assert np.mean(bidder % 100 == 1) == pytest.approx(3 / 4 + 1 / 400, abs=0.01)
    seller = column(made["auction"], "seller") - 1000
    assert np.mean(seller % 100 == 0) == pytest.approx(3 / 4 + 1 / 400, abs=0.03)
    hottest = [np.bincount(part).argmax() for part in np.array_split(auction, 10)]
    assert len(set(hottest)) == 10


def test_keys_are_in_flight_or_active(made: dict[str, pa.Table]) -> None:
    bids = made["bid"]
    newest_auction = np.arange(92_000) // 46 * 3 + 2
    back = newest_auction - (column(bids, "auction") - 1000)
    assert back.min() >= -10
    assert back.max() <= 100
    newest_person = np.arange(92_000) // 46
    back = newest_person - (column(bids, "bidder") - 1000)
    assert back.min() >= -10
    assert back.max() <= 1000


def test_zipf_hot_keys_stay() -> None:
    config = NexmarkConfig(events=200_000, hot="zipf")
    made = events(config, 0, config.events)
    auction = column(made["bid"], "auction") - 1000
    for part in np.array_split(auction, 4)[1:]:
        counts = np.bincount(part, minlength=100)[:100] / len(part)
        expected = 0.5 / np.arange(1, 101) / np.sum(1 / np.arange(1, 101))
        np.testing.assert_allclose(counts, expected, rtol=0.4, atol=0.001)
        assert counts.argmax() == 0
    bidders, sellers = (
        {int(n) for n in np.argsort(-np.bincount(keys))[:20]}
        for keys in (column(made["bid"], "bidder"), column(made["auction"], "seller"))
    )
    assert not bidders & sellers
    hot = made["auction"].slice(0, 100)
    assert column(hot, "expires").min() > column(made["bid"], "date_time").max()


def test_prices_are_even_on_a_logarithmic_scale(made: dict[str, pa.Table]) -> None:
    price = column(made["bid"], "price")
    assert price.min() >= 100
    assert price.max() <= 100_000_000
    share = np.histogram(np.log10(price), bins=np.arange(2, 9))[0] / len(price)
    np.testing.assert_allclose(share, 1 / 6, atol=0.01)
    unit = (Draws(1, np.arange(1000)).words("price") >> np.uint64(32)).astype(np.float64) / 2**32
    exact = np.rint(10 ** (unit * 6) * 100)
    assert np.abs(Draws(1, np.arange(1000)).price("price") - exact).max() <= 1


def test_sizes(made: dict[str, pa.Table]) -> None:
    def size(stream: str, numbers: int) -> float:
        table = made[stream]
        texts = [c for c in table.columns if pa.types.is_string(c.type)]
        return 8 * numbers + sum(pc.mean(pc.binary_length(text)).as_py() for text in texts)

    assert size("person", 1) == pytest.approx(200, abs=3)
    assert size("auction", 6) == pytest.approx(500, abs=5)
    extra = pc.mean(pc.binary_length(made["bid"].column("extra"))).as_py()
    assert extra + 32 == pytest.approx(100, abs=1)


def test_auctions_last_as_long_as_a_hundred_are_in_flight(made: dict[str, pa.Table]) -> None:
    auctions = made["auction"]
    length_ms = (column(auctions, "expires") - column(auctions, "date_time")) / 1000
    assert length_ms.min() >= 1
    assert length_ms.mean() == pytest.approx(1666 / 10, rel=0.05)
    assert set(column(auctions, "category").tolist()) == {10, 11, 12, 13, 14}
    assert (column(auctions, "reserve") > column(auctions, "initial_bid")).all()


def test_texts_look_as_they_should(made: dict[str, pa.Table]) -> None:
    def share(text: pa.ChunkedArray, pattern: str) -> float:
        return float(pc.mean(pc.match_substring_regex(text, pattern)).as_py())

    bids, people = made["bid"], made["person"]
    url = r"^https://www\.nexmark\.com/[a-z_]{3,4}/[a-z_]{3,4}/[a-z_]{3,4}/item\.htm\?query=1"
    assert share(bids["url"], url + r"(&channel_id=\d+)?$") == 1
    assert share(bids["url"], "channel_id=") == pytest.approx(0.45, abs=0.02)
    assert share(bids["channel"], "^(Google|Facebook|Baidu|Apple)$") == pytest.approx(0.5, abs=0.02)
    assert share(bids["channel"], r"^(Google|Facebook|Baidu|Apple|channel-\d{1,4})$") == 1
    assert share(people["credit_card"], r"^\d{4} \d{4} \d{4} \d{4}$") == 1
    assert share(people["email_address"], r"^[a-z ]*@[a-z ]*\.com$") == 1
    assert share(people["name"], r"^[A-Z][a-z]+ [A-Z][a-z]+$") == 1
    assert share(made["auction"]["item_name"], r"^ | $") == 0


@pytest.mark.parametrize(
    ("shape", "per_second"),
    [
        ("flat", [100] * 60),
        ("burst", [100] * 54 + [1000] * 6),
        ("step", [100] * 30 + [200] * 30),
        ("sine", [100 * (1 + 0.8 * np.sin(2 * np.pi * (i + 0.5) / 60)) for i in range(60)]),
    ],
)
def test_shapes(shape: str, per_second: list[float]) -> None:
    times = EventTimes(NexmarkConfig(events=1, rate=100, shape=shape))  # type: ignore[arg-type]
    micros = times.micros(np.arange(100_000))
    assert (np.diff(micros) >= 0).all()
    counts = np.bincount(micros // 1_000_000)
    whole_periods = counts[: (len(counts) - 1) // 60 * 60]
    expected = np.tile(per_second, len(whole_periods) // 60)
    assert np.abs(whole_periods - expected).max() <= 1.01


@settings(max_examples=60, deadline=None)
@given(
    shape=st.sampled_from(["flat", "burst", "sine", "step"]),
    rate=st.integers(1, 10_000_000),
    period_s=st.integers(1, 3_600),
    first=st.integers(0, 8_999_999_000),
)
def test_time_never_goes_back(shape: str, rate: int, period_s: int, first: int) -> None:
    period_s = min(period_s, 3_000_000_000 // rate)
    config = NexmarkConfig(events=1, rate=rate, shape=shape, period_s=period_s)  # type: ignore[arg-type]
    micros = EventTimes(config).micros(np.arange(first, first + 1000))
    assert (np.diff(micros) >= 0).all()
    assert micros[0] >= first * 1_000_000 // rate // 10
    assert micros[-1] <= (first + 1000) * 1_000_000 // rate * 5 + 5_000_000 * period_s


def test_few_events_and_none(tmp_path: Path) -> None:
    for n in range(6):
        for format in ("ndjson", "parquet"):
            counts = generate(NexmarkConfig(events=n), tmp_path, format)
            assert sum(counts.values()) == n
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        f"{stream}.parquet" for stream in sorted(STREAMS)
    ]


def test_progress_tells_what_is_done(tmp_path: Path) -> None:
    done: list[int] = []
    generate(NexmarkConfig(events=250), tmp_path, progress=done.append, chunk=100)
    assert done == [100, 200, 250]


@pytest.mark.parametrize(
    "wrong",
    [
        {"events": -1}, {"rate": 0}, {"shape": "saw"}, {"hot": "warm"}, {"disorder_ms": -1},
        {"events": 10**12}, {"rate": 10**9}, {"hot_auction_ratio": 0}, {"seed": 2**70},
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(SettingError, match="What to do"):
        NexmarkConfig(**({"events": 10} | wrong))  # type: ignore[arg-type]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(StoreError, match="cannot be written"):
        generate(NexmarkConfig(events=10), tmp_path / "taken")
    with pytest.raises(SettingError, match="Unknown format"):
        generate(NexmarkConfig(events=10), tmp_path, "csv")  # type: ignore[arg-type]


def test_an_interrupted_run_leaves_what_was_there(tmp_path: Path) -> None:
    generate(NexmarkConfig(events=200), tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}

    def interrupt(done: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate(NexmarkConfig(events=200, seed=2), tmp_path, "parquet", progress=interrupt)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
