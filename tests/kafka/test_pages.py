"""The pages with code for Kafka run as a whole, each with a broker of its own."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.errors import SettingError
from penstock_bench.broker import running_broker
from tests.pages import BROKERS, Reader, kafka_blocks, name_of, pages_with_code

pytestmark = pytest.mark.kafka


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", [p for p in pages_with_code() if kafka_blocks(p)], ids=name_of)
def test_the_code_of_a_page_runs(
    spark: SparkSession,
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    try:
        started = running_broker()
        broker = started.__enter__()
    except SettingError as missing:
        pytest.skip(f"no broker: {missing}")
    try:
        if "NewTopic" not in page.read_text():  # else the page makes its topics itself
            broker.create("orders"), broker.create("totals")
            order = json.dumps({"user": "ann", "amount": 1.5})
            broker.produce("orders", [{"value": order}] * 100)
        places = dict.fromkeys(BROKERS, broker.servers)
        ran = Reader(spark, tmp_path, monkeypatch).run(page, places, set())
        assert kafka_blocks(page) <= set(ran)
        if (
            page.name == "tutorial.md"
        ):  # a host is killed, and the mode changes: all are counted once
            counted = re.findall(r"(\d+) orders counted", capsys.readouterr().out)
            assert counted == ["20000", "40000", "60000", "61000"]
    finally:
        started.__exit__(None, None, None)
