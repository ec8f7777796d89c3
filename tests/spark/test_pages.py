"""The Python code of all pages runs. `tests/kafka` runs what needs a broker."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.pages import Reader, blocks, kafka_blocks, name_of, pages_with_code


@pytest.mark.parametrize("page", pages_with_code(), ids=name_of)
def test_the_code_of_a_page_runs(
    spark: SparkSession, page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = kafka_blocks(page)
    ran = Reader(spark, tmp_path, monkeypatch).run(page, {}, elsewhere)
    code = {block for block in blocks(page) if block.language == "python"}
    assert set(ran) == code - elsewhere
