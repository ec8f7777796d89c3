"""A new source is added to Spark's log of offsets, at once or at the next start."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.faults import Fault, InjectedFault, armed
from penstock.spark.checkpoint import Folder, OffsetLog
from penstock.state.store.places import Place


def test_a_new_source_is_told_once_wherever_it_breaks_off(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    folder = Folder(str(tmp_path), Place(str(tmp_path)))
    assert OffsetLog(folder).sources() is None
    for epoch in (8, 9, 10):
        (tmp_path / f"offsets/{epoch}").write_text(f'v1\n{{"facts": 1}}\n{{"offset":{epoch}}}')
        (tmp_path / f"offsets/.{epoch}.crc").touch()
    assert OffsetLog(folder).sources() == 1
    for hit in (1, 2):
        with armed(Fault("store.write", hits=(hit,))), pytest.raises(InjectedFault):
            OffsetLog(folder).have_sources(2)
        assert OffsetLog(folder).sources() == 1
    OffsetLog(folder).have_sources(2)
    OffsetLog(folder).have_sources(2)
    assert OffsetLog(folder).sources() == 2
    texts = {f.name: f.read_text().split("\n")[2:] for f in (tmp_path / "offsets").glob("[0-9]*")}
    assert texts == {
        "8": ['{"offset":8}'],
        "9": ['{"offset":9}', "-"],
        "10": ['{"offset":10}', "-"],
    }
    assert sorted(f.name for f in (tmp_path / "offsets").glob(".*")) == [".8.crc"]
