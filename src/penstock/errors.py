"""Every error that Penstock raises on purpose.

    PenstockError                 base: catch this one
    ├── FlowError                 the flow as written cannot work (column, schema, slots, step)
    ├── SettingError              a setting or the machine does not fit (cores, folder, port, Java)
    │   └── MemoryLimitError      an epoch does not fit into a host's memory
    ├── InputError                a file of events cannot be read: names file, line and column
    ├── CutInputError             Spark broke a task's input off; the task is tried again
    ├── CheckpointError           a checkpoint that does not match the flow, or is damaged
    ├── StoreError                the store does not take or give what an epoch needs; nothing was committed
    │   └── DeliveryError         a sink did not take an epoch whole; another run of it may do better
    ├── StepError                 user code failed: names step, key and row
    │   └── NullKeyError          a row without a key reached a keyed step
    ├── SumOverflowError          a sum of integers does not fit into 64 bits (an ArithmeticError, too)
    ├── ProtocolError             a message that the epoch protocol does not allow
    │   ├── StaleRunError         a message of a run that was given up
    │   └── ChangedInputError     a task was tried again with another input: its run is given up
    └── HostLostError             a host died or cannot be reached

Each message says what happened and what to do next. All of them pickle, and all of them cross
the wire as plain JSON (`to_wire`, `from_wire`), never as pickles.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar


class PenstockError(Exception):
    """Base of all errors that Penstock raises on purpose.

    >>> raise PenstockError("the folder is full", hint="free some space")
    Traceback (most recent call last):
    ...
    penstock.errors.PenstockError: the folder is full. What to do: free some space
    """

    kinds: ClassVar[dict[str, type[PenstockError]]] = {}

    def __init__(self, message: str, *, hint: str = "") -> None:
        self.message = message
        self.hint = hint
        super().__init__(f"{message}. What to do: {hint}" if hint else message)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        PenstockError.kinds[cls.__name__] = cls

    def facts(self) -> dict[str, str]:
        """The evidence as JSON-able values; the arguments that make this error again."""
        return {"message": self.message, "hint": self.hint}

    def __reduce__(self) -> tuple[Any, ...]:
        return (from_wire, (to_wire(self),))


PenstockError.kinds["PenstockError"] = PenstockError


class FlowError(PenstockError):
    """The flow as written cannot work."""


class SettingError(PenstockError):
    """A setting, or the machine, does not fit."""


class MemoryLimitError(SettingError):
    """An epoch does not fit into a host's memory: running it again would not help."""


FEWER_ROWS = (
    "let an epoch have fewer rows (maxOffsetsPerTrigger, maxFilesPerTrigger or the like, on the "
    "source), spread them over more partitions and hosts, or give Python on executors more memory "
    "(spark.executor.memoryOverhead; spark.executor.pyspark.memory where that is set)"
)
"""What to do when memory is short."""


class InputError(PenstockError):
    """A file of events is not there, or not as it must be."""


class CutInputError(PenstockError):
    """A task's input broke off before its end. Spark knows why, and tries the task again."""


class CheckpointError(PenstockError):
    """A checkpoint does not match the flow, or is damaged."""


class StoreError(PenstockError):
    """The store does not take or give what an epoch needs; nothing was committed."""


class DeliveryError(StoreError):
    """A sink that takes epochs whole did not take one, or did not say so: another run may do better."""


class StepError(PenstockError):
    """User code of a step failed on a row."""

    def __init__(
        self, message: str, *, hint: str = "", step: str = "", key: str = "", row: str = ""
    ) -> None:
        self.step, self.key, self.row = step, key, row
        super().__init__(message, hint=hint)

    def facts(self) -> dict[str, str]:
        return super().facts() | {"step": self.step, "key": self.key, "row": self.row}


class NullKeyError(StepError):
    """A row without a key reached a keyed step."""


class SumOverflowError(PenstockError, ArithmeticError):
    """A sum of integers does not fit into 64 bits. The channel that brought it to that changed nothing."""

    def __init__(self, message: str, *, hint: str = "", step: str = "") -> None:
        self.step = step
        super().__init__(message, hint=hint)

    def facts(self) -> dict[str, str]:
        return super().facts() | {"step": self.step}

    @staticmethod
    def of(column: str) -> SumOverflowError:
        """The error about the sum of a column; `overflow_in` adds the step."""
        return SumOverflowError(
            f"the sum of column {column!r} does not fit into 64 bits",
            hint="cast the column to double or to a decimal before the step",
        )


@contextmanager
def overflow_in(step: str) -> Iterator[None]:
    """Let a `SumOverflowError` from inside name the step, if it does not name one."""
    try:
        yield
    except SumOverflowError as error:
        if error.step:
            raise
        message = f"step {step}: {error.message}"
        raise SumOverflowError(message, hint=error.hint, step=step) from None


class ProtocolError(PenstockError):
    """A message that the epoch protocol does not allow."""


class StaleRunError(ProtocolError):
    """A message of an epoch's run that was given up; its sender should end."""


class ChangedInputError(ProtocolError):
    """A task was tried again with another number of rows; its epoch must be run again."""


class HostLostError(PenstockError):
    """A host died or cannot be reached; `location` is where it listened, if that is known. If there are
    several, their locations are separated by spaces."""

    def __init__(self, message: str, *, hint: str = "", location: str = "") -> None:
        self.location = location
        super().__init__(message, hint=hint)

    def facts(self) -> dict[str, str]:
        return super().facts() | {"location": self.location}


_MARK = "penstock-error:"


def to_wire(error: PenstockError) -> str:
    """The error as one line of text, for a Flight error message.

    >>> from_wire(to_wire(SettingError("no Java", hint="install Java 17"))).hint
    'install Java 17'
    """
    return _MARK + json.dumps({"kind": type(error).__name__} | error.facts()) + "\n"


def from_wire(text: str) -> PenstockError:
    """The error inside a text that `to_wire` made, whatever was put around it."""
    error = find(text)
    return error if error is not None else PenstockError(text)


def find(text: str) -> PenstockError | None:
    """The first Penstock error told in a text (a Flight message, a Spark stack trace), if any."""
    start = text.find(_MARK)
    if start < 0:
        return None
    try:
        facts, _ = json.JSONDecoder().raw_decode(text[start + len(_MARK) :])
    except ValueError:
        return None
    kind = PenstockError.kinds.get(facts.pop("kind", ""), PenstockError)
    return kind(**facts)
