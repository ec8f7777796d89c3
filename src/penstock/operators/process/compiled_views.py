"""What a compiled handler sees in place of the processor, its state and its timers.

A view stands for one entry of an array of records. It has the methods of the Python object in whose place it
is, and they mean the same. What a view cannot do, such as a second timer of a kind, raises an exception in
compiled code: the call is undone, and made again in Python (see `compiled_calls`).
"""

from __future__ import annotations

from collections import namedtuple
from functools import lru_cache
from typing import Any

import numba.core.cgutils
import numba.extending
import numpy as np

from penstock.state.variables.timers import LIMIT

# numba's annotations lack much of what it documents
types: Any = numba.types
cgutils: Any = numba.core.cgutils
extending: Any = numba.extending
TypingError: Any = numba.core.errors.TypingError
models: Any = extending.models
overload, overload_method = extending.overload, extending.overload_method
overload_attribute, intrinsic = extending.overload_attribute, extending.intrinsic

VALUE, TIMERS, TIMES = "value", "timers", "times"
"""Kinds of views: value state, the state handle with the timers of a key, the times of the epoch."""


class View(types.Type):  # type: ignore[misc]
    """The type of a view. `fields` are the names of a value's fields; in the records they are f0, f1, ..."""

    def __init__(self, kind: str, fields: tuple[str, ...], array: Any) -> None:
        self.kind, self.fields, self.array = kind, fields, array
        super().__init__(f"penstock.View({kind}, {fields}, {array})")


@extending.register_model(View)
class _ViewModel(models.StructModel):  # type: ignore[misc]
    def __init__(self, manager: Any, view: View) -> None:
        super().__init__(manager, view, [("array", view.array), ("at", types.intp)])


# A record itself would be copied into the frame of a handler that yields.
extending.make_attribute_wrapper(View, "array", "_array")
extending.make_attribute_wrapper(View, "at", "_at")


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def view(typing: Any, kind: Any, fields: Any, array: Any, at: Any) -> Any:
    """A view of entry `at` of an array. `fields` is text, with commas between the names."""
    if not isinstance(kind, types.Literal):
        return None
    names = tuple(fields.literal_value.split(",")) if fields.literal_value else ()
    made = View(kind.literal_value, names, array)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        struct = cgutils.create_struct_proxy(made)(context, builder)
        struct.array, struct.at = args[2], args[3]
        context.nrt.incref(builder, array, args[2])
        return struct._getvalue()

    return made(kind, fields, array, types.intp), codegen


@lru_cache(maxsize=256)
def _row_type(names: tuple[str, ...]) -> Any:
    return namedtuple("Row", names, rename=True)


def _function(source: str, **names: Any) -> Any:
    """The function `made` that some source text defines."""
    exec(compile(source, __file__, "exec"), names)
    return names["made"]


def check(target: Any, value: Any, column: str) -> None:
    """Raise a TypingError if values of a type do not fit a column."""
    value = types.unliteral(value)
    fits = (
        isinstance(value, types.Integer)
        if isinstance(target, types.Integer)
        else isinstance(value, (types.Integer, types.Float))
        if isinstance(target, types.Float)
        else value == target
    )
    if not fits:
        raise TypingError(f"the column {column!r} takes {target}, not {value}")


def fitted(value: Any, like: Any, column: Any) -> Any:
    """A value for a column, which is of the type of `like`. Raises OverflowError if it is out of range."""
    raise NotImplementedError


@overload(fitted, prefer_literal=True, strict=False)  # type: ignore[untyped-decorator]
def _fitted(value: Any, like: Any, column: Any) -> Any:
    if not isinstance(column, types.Literal):
        return None
    check(like, value, column.literal_value)
    if not isinstance(like, types.Integer) or like.bitwidth == 64:
        return lambda value, like, column: value
    low, high = like.minval, like.maxval

    def narrow(value: Any, like: Any, column: Any) -> Any:
        if value < low or value > high:
            raise OverflowError("out of range")
        return value

    return narrow


# -- value state


@overload_method(View, "exists", strict=False)  # type: ignore[untyped-decorator]
def _exists(self: Any) -> Any:
    if self.kind == VALUE:
        return lambda self: self._array[self._at].there != 0
    return None


@overload_method(View, "get", strict=False)  # type: ignore[untyped-decorator]
def _get(self: Any, default: Any = None) -> Any:
    if self.kind != VALUE:
        return None
    row = _row_type(self.fields)
    # numbers are as wide as in Python, whether they come from the state or from the default
    wide = [_wide(self.array.dtype.typeof(f"f{at}")) for at in range(len(self.fields))]
    held = ", ".join(f"{kind}(record.f{at})" for at, kind in enumerate(wide))
    missing = "raise ValueError('there is no value')"
    if not isinstance(default, types.Omitted) and default not in (None, types.none):
        if not isinstance(default, types.BaseTuple) or len(default) != len(self.fields):
            raise TypingError(f"the default must be a tuple of {len(self.fields)} values")
        values = [
            f"{kind}(fitted(default[{at}], record.f{at}, {name!r}))"
            for at, (kind, name) in enumerate(zip(wide, self.fields, strict=True))
        ]
        missing = f"return Row({', '.join(values)})"
    return _function(
        f"def made(self, default=None):\n"
        f"    record = self._array[self._at]\n"
        f"    if record.there == 0:\n"
        f"        {missing}\n"
        f"    return Row({held})\n",
        Row=row,
        fitted=fitted,
        np=np,
    )


def _wide(type: Any) -> str:
    """The name of the widest numpy type of a kind of numbers."""
    if isinstance(type, types.Float):
        return "np.float64"
    if isinstance(type, types.Integer):
        return "np.int64" if type.signed else "np.uint64"
    return "np.bool_"


@overload_method(View, "update", strict=False)  # type: ignore[untyped-decorator]
def _update(self: Any, value: Any) -> Any:
    if self.kind != VALUE:
        return None
    if not isinstance(value, types.BaseTuple) or len(value) != len(self.fields):
        raise TypingError(f"the value must be a tuple of {len(self.fields)} values")
    fields = list(enumerate(self.fields))
    lines = [f"    v{at} = fitted(value[{at}], record.f{at}, {name!r})" for at, name in fields]
    lines += [f"    record.f{at} = v{at}" for at, _ in fields]
    return _function(
        "def made(self, value):\n    record = self._array[self._at]\n"
        + "\n".join(lines)
        + "\n    record.there = 1\n    record.changed = 1\n",
        fitted=fitted,
    )


@overload_method(View, "clear", strict=False)  # type: ignore[untyped-decorator]
def _clear(self: Any) -> Any:
    def clear(self: Any) -> None:
        record = self._array[self._at]
        if record.there != 0:
            record.there = 0
            record.changed = 1

    return clear if self.kind == VALUE else None


# -- timers


def _column_of(time: Any) -> str:
    """The field of a kind of timer, from the type of the argument `time`."""
    kind = getattr(time, "literal_value", getattr(time, "value", time))
    if kind not in ("processing", "event"):
        raise TypingError('the kind of time must be the text "processing" or "event" itself')
    return str(kind)


@overload_method(View, "register_timer", prefer_literal=True, strict=False)  # type: ignore[untyped-decorator]
def _register(self: Any, expiry_ms: Any, time: Any = "processing") -> Any:
    if self.kind != TIMERS:
        return None
    return _function(
        f"def made(self, expiry_ms, time='processing'):\n"
        f"    record = self._array[self._at]\n"
        f"    due = fitted(expiry_ms, record.{_column_of(time)}, 'expiry_ms') + LIMIT\n"
        f"    if due <= 0 or expiry_ms >= LIMIT:\n"
        f"        raise OverflowError('a timer is out of range')\n"
        f"    if record.{_column_of(time)} == 0:\n"
        f"        record.{_column_of(time)} = due\n"
        f"        record.changed = 1\n"
        f"    elif record.{_column_of(time)} != due:\n"
        f"        raise OverflowError('a key has two timers of a kind')\n",
        LIMIT=LIMIT,
        fitted=fitted,
    )


@overload_method(View, "delete_timer", prefer_literal=True, strict=False)  # type: ignore[untyped-decorator]
def _delete(self: Any, expiry_ms: Any, time: Any = "processing") -> Any:
    if self.kind != TIMERS:
        return None
    return _function(
        f"def made(self, expiry_ms, time='processing'):\n"
        f"    record = self._array[self._at]\n"
        f"    if record.{_column_of(time)} == fitted(expiry_ms, 0, 'expiry_ms') + LIMIT:\n"
        f"        record.{_column_of(time)} = 0\n"
        f"        record.changed = 1\n",
        LIMIT=LIMIT,
        fitted=fitted,
    )


@overload_method(View, "list_timers", prefer_literal=True, strict=False)  # type: ignore[untyped-decorator]
def _list(self: Any, time: Any = "processing") -> Any:
    if self.kind != TIMERS:
        return None
    return _function(
        f"def made(self, time='processing'):\n"
        f"    due = self._array[self._at].{_column_of(time)}\n"
        f"    if due != 0:\n"
        f"        yield due - LIMIT\n",
        LIMIT=LIMIT,
    )


# -- times of the epoch


@overload_attribute(View, "processing_time_ms", strict=False)  # type: ignore[untyped-decorator]
def _processing(self: Any) -> Any:
    return (lambda self: self._array[self._at].processing) if self.kind == TIMES else None


@overload_attribute(View, "watermark_ms", strict=False)  # type: ignore[untyped-decorator]
def _watermark(self: Any) -> Any:
    return (lambda self: self._array[self._at].event) if self.kind == TIMES else None


@overload_method(View, "get_current_processing_time_in_ms", strict=False)  # type: ignore[untyped-decorator]
def _processing_too(self: Any) -> Any:
    return (lambda self: self._array[self._at].processing) if self.kind == TIMES else None


@overload_method(View, "get_current_watermark_in_ms", strict=False)  # type: ignore[untyped-decorator]
def _watermark_too(self: Any) -> Any:
    return (lambda self: self._array[self._at].event) if self.kind == TIMES else None
