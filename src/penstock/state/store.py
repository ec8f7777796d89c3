"""The store: deltas and manifests of a checkpoint, through any `pyarrow.fs` file system.

    <root>/flow.json                          what the state belongs to: steps, keys, schemas, slots
    <root>/deltas/<step>/<epoch>-<run>-<host>.arrow   the entries that a host changed in an epoch
    <root>/manifests/<epoch>.json             the epoch is durable: its deltas, routes, watermarks
    <root>/dead_letters/<epoch>.jsonl         rows set aside in the epoch

A manifest names only its own epoch's deltas and the epoch that its chain begins with (`base`), so
its size does not grow with the age of a query. A manifest is the commit point: files that no
manifest names do not exist for anybody.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from penstock.errors import CheckpointError, SettingError, StoreError
from penstock.operators.operator import DeadLetter

FORMAT = 1
_PAUSES_S = (0.1, 0.5, 2.0)
"""Waits between tries at a write that the store refused."""


@dataclass(frozen=True)
class DeltaRef:
    """One delta file: where it is and how much it holds."""

    step: str
    host: str
    file: str
    rows: int
    size: int


@dataclass(frozen=True)
class Manifest:
    """All that makes an epoch durable."""

    epoch: int
    run: int
    base: int
    """The first epoch of the chain of manifests that restores this version."""
    deltas: tuple[DeltaRef, ...]
    routes: dict[str, dict[str, Any]]
    """step -> route table, as `RouteTable.to_json` gives it."""
    watermarks: dict[str, int | None]
    """step -> watermark of the next epoch, in milliseconds."""
    rows: int
    sealed_at_ms: int


class Store:
    """Reads and writes one checkpoint. Stateless: any process may hold one for the same root."""

    def __init__(self, uri: str, pause: Callable[[float], None] = time.sleep) -> None:
        self.uri = uri
        self._pause = pause
        self._fs, self._root = open_filesystem(uri)
        self._renames = self._fs.type_name in ("local", "hdfs", "subtree")

    # What the checkpoint belongs to

    def read_flow(self) -> dict[str, Any] | None:
        return self._read_json("flow.json")

    def write_flow(self, facts: dict[str, Any]) -> None:
        self._write("flow.json", json.dumps(facts, indent=1).encode())

    # Deltas

    def write_delta(self, epoch: int, run: int, step: str, host: str, table: pa.Table) -> DeltaRef:
        """Write a delta, whole or not at all. An empty delta is not written."""
        name = f"deltas/{step}/{epoch:012d}-{run}-{host.replace('/', '-')}.arrow"
        if table.num_rows == 0:
            return DeltaRef(step, host, "", 0, 0)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        data = sink.getvalue()
        self._write_patiently(name, data)
        return DeltaRef(step, host, name, table.num_rows, data.size)

    def read_delta(self, ref: DeltaRef) -> pa.Table:
        try:
            with self._fs.open_input_file(self._path(ref.file)) as file:
                return pa.ipc.open_file(pa.BufferReader(file.read_buffer())).read_all()
        except (OSError, pa.ArrowException) as damaged:
            raise CheckpointError(
                f"cannot read {ref.file} of {self.uri}: {damaged}",
                hint="restore this file from a backup, or start from a new checkpoint folder",
            ) from damaged

    # Manifests

    def write_manifest(self, manifest: Manifest) -> None:
        """The commit point of an epoch: visible whole or not at all."""
        facts = asdict(manifest) | {"format": FORMAT}
        self._write_patiently(f"manifests/{manifest.epoch:012d}.json", json.dumps(facts).encode())

    def read_manifest(self, epoch: int) -> Manifest | None:
        facts = self._read_json(f"manifests/{epoch:012d}.json")
        if facts is None:
            return None
        found = facts.pop("format", None)
        if found != FORMAT:
            raise CheckpointError(
                f"{self.uri} was written in state format {found}; this Penstock reads {FORMAT}",
                hint="open it with the release that wrote it, or start from a new checkpoint folder",
            )
        facts["deltas"] = tuple(DeltaRef(**d) for d in facts["deltas"])
        return Manifest(**facts)

    def epochs(self) -> list[int]:
        """The epochs that have a manifest, in order."""
        selector = pafs.FileSelector(self._path("manifests"), allow_not_found=True)
        names = [info.base_name for info in self._fs.get_file_info(selector)]
        return sorted(int(n.split(".")[0]) for n in names if n.endswith(".json"))

    def chain(self, epoch: int) -> list[Manifest]:
        """The manifests that restore a version, oldest first."""
        newest = self.read_manifest(epoch)
        if newest is None:
            raise CheckpointError(
                f"{self.uri} has no manifest of epoch {epoch}, which Spark's log says was committed",
                hint="the folder is incomplete: restore it, or start from a new checkpoint folder",
            )
        chain = [newest]
        for earlier in range(epoch - 1, newest.base - 1, -1):
            manifest = self.read_manifest(earlier)
            if manifest is None:
                raise CheckpointError(
                    f"{self.uri} lacks the manifest of epoch {earlier}, which epoch {epoch} builds on",
                    hint="the folder is incomplete: restore it, or start from a new one",
                )
            chain.append(manifest)
        return chain[::-1]

    # Dead letters

    def write_dead_letters(self, epoch: int, letters: Sequence[DeadLetter]) -> None:
        lines = "".join(json.dumps({"epoch": epoch} | asdict(x)) + "\n" for x in letters)
        self._write_patiently(f"dead_letters/{epoch:012d}.jsonl", lines.encode())

    # Files

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _read_json(self, name: str) -> dict[str, Any] | None:
        try:
            with self._fs.open_input_stream(self._path(name)) as file:
                data = file.read()
        except FileNotFoundError:
            return None
        try:
            facts: dict[str, Any] = json.loads(data)
        except ValueError as damaged:
            raise CheckpointError(
                f"{name} of {self.uri} is damaged: {damaged}",
                hint="restore this file from a backup, or start from a new checkpoint folder",
            ) from damaged
        return facts

    def _write_patiently(self, name: str, data: bytes | pa.Buffer) -> None:
        """Write what an epoch's commit depends on; a store that fails shortly is asked again."""
        for pause_s in (*_PAUSES_S, None):
            try:
                return self._write(name, data)
            except OSError as refused:
                if pause_s is None:
                    raise StoreError(
                        f"cannot write {name} of {self.uri}: {refused}",
                        hint="check free space, permissions and the network; the epoch was not "
                        "committed, and starting the flow again continues before it",
                    ) from refused
                self._pause(pause_s)
        return None

    def _write(self, name: str, data: bytes | pa.Buffer) -> None:
        """Write a file that appears whole: by rename, or by the object store's own atomic put."""
        path = self._path(name)
        target = f"{path}.{os.getpid()}.tmp" if self._renames else path
        try:
            file = self._fs.open_output_stream(target)
        except FileNotFoundError:
            self._fs.create_dir(path.rsplit("/", 1)[0], recursive=True)
            file = self._fs.open_output_stream(target)
        with file:
            file.write(data)
        if self._renames:
            self._fs.move(target, path)


def open_filesystem(uri: str) -> tuple[pafs.FileSystem, str]:
    """The file system and path of a folder given as a path or a URI (s3a is taken as s3)."""
    try:
        if "://" not in uri and not uri.startswith("file:"):
            return pafs.LocalFileSystem(), os.path.abspath(uri)
        filesystem, path = pafs.FileSystem.from_uri(uri.replace("s3a://", "s3://", 1))
        return filesystem, path.rstrip("/")
    except (pa.ArrowException, OSError, ValueError) as refused:
        raise SettingError(
            f"cannot open the folder {uri!r}: {refused}",
            hint="use a local path, or a URI that pyarrow.fs knows: file://, s3://, gs://, hdfs://",
        ) from refused
