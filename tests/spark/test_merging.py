"""Epochs of a file sink are merged, and each row is there once, wherever it breaks off."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.errors import CheckpointError
from penstock.spark.merging import EpochFolders


class Broken(BaseException):
    """The process ends here."""


class LocalFolder:
    """The twin of a folder that Spark writes to; breaks off before its n-th change.

    With `copies`, a folder gets another name file by file, as in an object store, and it may break off
    between any two of them.
    """

    def __init__(self, root: Path, breaks: int = 0, copies: bool = False) -> None:
        self.uri, self._root, self._left, self._copies = str(root), root, breaks, copies

    def _change(self) -> None:
        self._left -= 1
        if self._left == 0:
            raise Broken

    def names(self, folder: str) -> list[str]:
        there = self._root / folder
        return os.listdir(there) if there.exists() else []

    def files(self, folder: str) -> list[str]:
        there = self._root / folder
        return [str(f.relative_to(there)) for f in there.rglob("*") if f.is_file()]

    def read(self, name: str) -> bytes | None:
        there = self._root / name
        return there.read_bytes() if there.exists() else None

    def write(self, name: str, data: bytes) -> None:
        self._change()
        (self._root / name).parent.mkdir(exist_ok=True, parents=True)
        (self._root / name).write_bytes(data)

    def settle(self, folder: str) -> None:
        assert self.files(folder)

    def rename(self, name: str, to: str) -> None:
        assert not (self._root / to).exists()
        for step in ("copy", "remove") if self._copies else ():
            for file in sorted(self.files(name)):
                if step == "copy":
                    self.write(f"{to}/{file}", (self._root / name / file).read_bytes())
                else:
                    self._change()
                    (self._root / name / file).unlink()
        if not self._copies:
            self._change()
            (self._root / name).rename(self._root / to)

    def put_away(self, name: str, to: str) -> None:
        if self._copies:
            return self.remove(name)
        (self._root / to).mkdir(exist_ok=True, parents=True)
        return self.rename(name, f"{to}/{name}")

    def remove(self, name: str) -> None:
        for file in sorted(self.files(name)):
            self._change()
            (self._root / name / file).unlink()
        if (self._root / name).exists():
            self._change()
            (shutil.rmtree if (self._root / name).is_dir() else os.unlink)(self._root / name)


def folders(root: Path, breaks: int = 0, copies: bool = False) -> EpochFolders:
    folder = LocalFolder(root, breaks, copies)
    return EpochFolders(folder, lambda names, to: rewritten(folder, root, names, to))


def rewritten(folder: LocalFolder, root: Path, names: Sequence[str], to: str) -> None:
    """Two files for all, as Spark might write them; their names are never used twice."""
    lines = [line for name in names for line in rows(root / name)]
    for number in range(2):
        text = "\n".join(lines[number::2])
        folder.write(f"{to}/part={number}/{os.urandom(4).hex()}.txt", text.encode())


def rows(folder: Path) -> list[str]:
    return [
        line for f in sorted(folder.rglob("*.txt")) for line in f.read_text().split("\n") if line
    ]


def seen(root: Path) -> list[int]:
    """Rows that a reader finds."""
    return sorted(int(row) for folder in root.glob("epoch=*") for row in rows(folder))


def write(root: Path, epochs: range) -> None:
    for epoch in epochs:
        folder = root / f"epoch={epoch}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for part in range(2):
            (folder / f"{part}-{os.urandom(4).hex()}.txt").write_text(f"{2 * epoch + part}\n")


@pytest.mark.parametrize("copies", [False, True], ids=["renames", "copies"])
def test_each_row_is_there_once_wherever_it_breaks_off(tmp_path: Path, copies: bool) -> None:
    """At every single operation of a second merge, and then again while that is being finished."""
    breaks, broke = 0, True
    while broke:
        breaks += 1
        for again in range(1, 4):
            root = tmp_path / f"{breaks}-{again}"
            write(root, range(7))
            merged = folders(root)
            merged.begin(6)
            merged.merge(merged.final(3))
            broke, late = False, folders(root, breaks, copies)
            try:
                late.begin(6)
                assert late.final(6) == [3, 4, 5]
                late.merge([3, 4, 5])
            except Broken:
                broke = True
                assert len(seen(root)) == len(set(seen(root))), "a row is there twice"
                with suppress(Broken):
                    folders(root, again * breaks, copies).begin(6)
                assert len(seen(root)) == len(set(seen(root))), "a row is there twice"
                if again == 3:  # the same process tries again
                    late.merge(left) if len(left := late.final(6)) > 1 else None
            write(root, range(6, 9))  # the epoch under way is run again, and others follow
            after = folders(root)
            after.begin(9)
            assert seen(root) == list(range(18))
            after.merge(after.final(9))
            assert seen(root) == list(range(18))
            names = sorted(name.name for name in root.iterdir())
            assert names[-1] == "epoch=8"
            assert len(names) <= 4
            assert [name.name for name in (root / "_merging").iterdir()] == ["000000000008.json"]
    assert breaks > 10, "nothing broke"


def test_an_epoch_that_may_be_run_again_is_left_alone(tmp_path: Path) -> None:
    write(tmp_path, range(5))
    assert folders(tmp_path).final(newest=4) == [0, 1, 2, 3]
    (tmp_path / "epoch=__HIVE_DEFAULT_PARTITION__").mkdir()
    (tmp_path / "_SUCCESS").touch()
    assert folders(tmp_path).final(newest=4) == [0, 1, 2, 3]


def test_a_run_that_begins_before_what_was_merged_is_refused(tmp_path: Path) -> None:
    """Its epochs would be there a second time."""
    write(tmp_path, range(5))
    merged = folders(tmp_path)
    merged.begin(0)
    merged.merge(merged.final(4))
    with pytest.raises(CheckpointError, match=r"holds epoch 3 merged.*goes on with epoch 2"):
        folders(tmp_path).begin(2)
    folders(tmp_path).begin(4)


def test_a_new_folder_that_is_not_whole_takes_nothing_away(tmp_path: Path) -> None:
    write(tmp_path, range(4))
    with pytest.raises(Broken):
        folders(tmp_path, breaks=4).merge([0, 1, 2])  # two files, a mark, the first folder
    next((tmp_path / "_merging/new-2/part=0").iterdir()).unlink()
    with pytest.raises(CheckpointError, match="are missing"):
        folders(tmp_path).begin(3)
    assert seen(tmp_path) == list(range(8))


@pytest.mark.parametrize("turn", range(1, 9))
def test_a_driver_that_was_taken_over_in_the_middle_takes_nothing_away(
    tmp_path: Path, turn: int
) -> None:
    """It goes on at any operation after another one has finished, or undone, its merge."""
    write(tmp_path, range(6))
    folder, left = LocalFolder(tmp_path), [turn]

    def change() -> None:
        left[0] -= 1
        if left[0] == 0:
            folders(tmp_path).begin(5)

    def rewrite(names: Sequence[str], to: str) -> None:
        rewritten(folder, tmp_path, names, to)
        if left[0] <= 0:
            raise OSError("another driver owns the checkpoint")

    folder._change = change  # type: ignore[method-assign]
    with suppress(OSError, CheckpointError):
        EpochFolders(folder, rewrite).merge([0, 1, 2, 3])
    folders(tmp_path).begin(5)
    assert seen(tmp_path) == list(range(12))
