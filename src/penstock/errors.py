"""Every error that Penstock raises on purpose.

    PenstockError                 base class of all errors
    ├── FlowError                 the flow as written cannot work (column, schema, slots, step)
    ├── SettingError              a setting or the machine is wrong (cores, folder, port, Java)
    │   └── MemoryLimitError      an epoch does not fit into a host's memory
    ├── InputError                a file of events cannot be read: names file, line and column
    ├── CutInputError             a task's input ended early; Spark retries the task
    ├── CheckpointError           a checkpoint does not match the flow, or is damaged
    ├── StoreError                the store failed to read or write; nothing was committed
    │   └── DeliveryError         a sink did not accept an epoch; a retry may succeed
    ├── StepError                 user code failed: names step, key and row
    │   └── NullKeyError          a row without a key reached a keyed step
    ├── SumOverflowError          a sum of integers overflows 64 bits (also an ArithmeticError)
    ├── ProtocolError             a message that the epoch protocol does not allow
    │   ├── StaleRunError         a message from an abandoned run of an epoch
    │   └── ChangedInputError     a retried task had different input; the epoch is run again
    └── HostLostError             a host died or cannot be reached

Each message says what happened and what to do about it. All errors can be pickled. They cross the wire
as plain JSON (`to_wire`, `from_wire`), never as pickles.
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
        """The error's constructor arguments, as JSON-able values."""
        return {"message": self.message, "hint": self.hint}

    def __reduce__(self) -> tuple[Any, ...]:
        return (from_wire, (to_wire(self),))


PenstockError.kinds["PenstockError"] = PenstockError


class FlowError(PenstockError):
    """The flow as written cannot work."""


class SettingError(PenstockError):
    """A setting is wrong, or does not suit the machine."""


class MemoryLimitError(SettingError):
    """An epoch does not fit into a host's memory. A retry would not help."""


FEWER_ROWS = (
    "let an epoch have fewer rows (maxOffsetsPerTrigger, maxFilesPerTrigger or the like, on the "
    "source), spread them over more partitions and hosts, or give Python on executors more memory "
    "(spark.executor.memoryOverhead; spark.executor.pyspark.memory where that is set)"
)
"""Hint for errors caused by too little memory."""


class InputError(PenstockError):
    """A file of events is missing or malformed."""


class CutInputError(PenstockError):
    """A task's input ended early. Spark knows why, and retries the task."""


class CheckpointError(PenstockError):
    """A checkpoint does not match the flow, or is damaged."""


class StoreError(PenstockError):
    """The store failed to read or write an epoch's data. Nothing was committed."""


class DeliveryError(StoreError):
    """A transactional sink did not accept an epoch, or did not confirm it. A retry may succeed."""


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
    """A sum of integers overflows 64 bits. The state is unchanged: the rows that caused it are undone."""

    def __init__(self, message: str, *, hint: str = "", step: str = "") -> None:
        self.step = step
        super().__init__(message, hint=hint)

    def facts(self) -> dict[str, str]:
        return super().facts() | {"step": self.step}

    @staticmethod
    def of(column: str) -> SumOverflowError:
        """Make the error for the sum of a column. `in_step` adds the step."""
        return SumOverflowError(
            f"the sum of column {column!r} does not fit into 64 bits",
            hint="cast the column to double or to a decimal before the step",
        )


@contextmanager
def in_step(step: str) -> Iterator[None]:
    """Add the step's name to a `SumOverflowError` or `StepError` raised inside that names no step."""
    try:
        yield
    except (SumOverflowError, StepError) as error:
        if error.step:
            raise
        message = f"step {step}: {error.message}"
        if isinstance(error, SumOverflowError):
            raise SumOverflowError(message, hint=error.hint, step=step) from error.__cause__
        raise StepError(
            message, hint=error.hint, step=step, key=error.key, row=error.row
        ) from error.__cause__


class ProtocolError(PenstockError):
    """A message that the epoch protocol does not allow."""


class StaleRunError(ProtocolError):
    """A message from an abandoned run of an epoch. Its sender should stop."""


class ChangedInputError(ProtocolError):
    """A retried task had another number of rows. Its epoch must run again."""


class HostLostError(PenstockError):
    """One or more hosts died or cannot be reached.

    `location` is the Flight location of the host, if known; of several hosts, separated by spaces.
    """

    def __init__(self, message: str, *, hint: str = "", location: str = "") -> None:
        self.location = location
        super().__init__(message, hint=hint)

    def facts(self) -> dict[str, str]:
        return super().facts() | {"location": self.location}


_MARK = "penstock-error:"


def to_wire(error: PenstockError) -> str:
    """Serialize an error to one line of text, for a Flight error message.

    >>> from_wire(to_wire(SettingError("no Java", hint="install Java 17"))).hint
    'install Java 17'
    """
    return _MARK + json.dumps({"kind": type(error).__name__} | error.facts()) + "\n"


def from_wire(text: str) -> PenstockError:
    """Restore the error from text that contains the output of `to_wire`."""
    error = find(text)
    return error if error is not None else PenstockError(text)


def find(text: str) -> PenstockError | None:
    """Find the first Penstock error in a text, such as a Flight message or a Spark stack trace."""
    start = text.find(_MARK)
    if start < 0:
        return None
    try:
        facts, _ = json.JSONDecoder().raw_decode(text[start + len(_MARK) :])
    except ValueError:
        return None
    kind = PenstockError.kinds.get(facts.pop("kind", ""), PenstockError)
    return kind(**facts)
