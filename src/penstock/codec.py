"""One codec for everything that leaves a process as JSON: messages, plans, manifests, journal, events.

A value is a frozen dataclass; its fields are its JSON keys. Reading checks types, ignores keys that it
does not know, and fills in defaults for keys that are missing, so that a newer field does not make an
older file unreadable.

Arrays of numpy and Arrow are text in base64, so that they stay small and keep every bit. A lone number
that is not finite (nan, inf) becomes null.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from functools import cache
from typing import Any, TypeVar, cast, get_args

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import ProtocolError

T = TypeVar("T")

_WRONG = (msgspec.MsgspecError, pa.ArrowException, LookupError, OSError, RecursionError, ValueError)
_HINT = "use the same release of Penstock everywhere; if it is the same, restore what is damaged"
_DTYPES = {
    dtype.str: dtype for code in "?bBhHiIqQfd" for dtype in [np.dtype(code).newbyteorder("<")]
}
"""Types of numbers that an array may have, by the names that they are written with."""
_BARE = "<i4"
"""Arrays of this type are written without naming it: route tables in checkpoints never did."""


def encode(value: object) -> bytes:
    """A value as JSON text in UTF-8.

    >>> encode({"slots": np.arange(3), "rate": np.float64(1.5)})
    b'{"slots":["<i8","AAAAAAAAAAABAAAAAAAAAAIAAAAAAAAA"],"rate":1.5}'
    """
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:  # half a character, as in an error about a file's name
        return json.dumps(to_plain(value), ensure_ascii=False).encode(errors="replace")


def text(value: object, indent: int = 0) -> str:
    """A value as JSON text, on several lines if it is to be indented.

    >>> print(text({"hosts": ["a"]}, indent=2))
    {
      "hosts": [
        "a"
      ]
    }
    """
    told = encode(value).decode()
    return msgspec.json.format(told, indent=indent) if indent else told


def lines(values: Iterable[object]) -> bytes:
    """Values as JSON text, each on a line of its own."""
    return b"".join(encode(value) + b"\n" for value in values)


def decode(data: bytes | str, kind: type[T]) -> T:
    """The value of this type that the JSON text holds; of type `object`: plain JSON values of any kind.

    >>> decode(b'[1, 2]', tuple[int, ...])
    (1, 2)
    >>> decode(b'["a"]', tuple[int, ...])
    Traceback (most recent call last):
    ...
    penstock.errors.ProtocolError: this is no tuple: Expected `int`, got `str` - at `$[0]`. What to do: \
use the same release of Penstock everywhere; if it is the same, restore what is damaged
    """
    wanted: Any = kind
    decoder = _decoder(wanted)
    try:
        return cast(T, decoder.decode(data))
    except _WRONG as wrong:
        raise _refused(kind, wrong) from wrong


def to_plain(value: object) -> Any:
    """A value as plain JSON values: dicts, lists, numbers, text."""
    return msgspec.to_builtins(value, enc_hook=_plain, str_keys=True)


def from_plain(value: object, kind: type[T]) -> T:
    """Undo `to_plain`."""
    _decoder(kind)
    try:
        return msgspec.convert(value, kind, dec_hook=_rich, str_keys=True)
    except _WRONG as wrong:
        raise _refused(kind, wrong) from wrong


def _refused(kind: Any, wrong: Exception) -> ProtocolError:
    return ProtocolError(f"this is no {getattr(kind, '__name__', kind)}: {wrong}", hint=_HINT)


def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """The decoder of a type. What msgspec knows of a dataclass is there for all threads while it is still
    being filled in, and a thread that uses it then crashes: so one thread at a time makes a decoder, of
    all types that are in its own too, and nobody reads a type before."""
    found = _decoders.get(kind)
    if found is None:
        with _making:
            found = _decoders.setdefault(kind, msgspec.json.Decoder(kind, dec_hook=_rich))
    return found


def _plain(value: object) -> Any:
    if isinstance(value, np.ndarray):
        return _packed(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, pa.Array):
        batch, sink = pa.record_batch([value], names=[""]), pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        return sink.getvalue().to_pybytes()
    raise NotImplementedError(f"{type(value).__name__} is no JSON value")


def _packed(array: npt.NDArray[Any]) -> Any:
    """The type of its numbers, and their bytes, the lowest first; its shape, if that is no row."""
    dtype = array.dtype.newbyteorder("<")
    if dtype.str not in _DTYPES:
        raise NotImplementedError(f"an array of type {dtype}")
    numbers = array.astype(dtype, copy=False).tobytes()
    if array.ndim != 1:
        return (dtype.str, numbers, array.shape)
    return numbers if dtype.str == _BARE else (dtype.str, numbers)


def _rich(kind: Any, value: Any) -> Any:
    if getattr(kind, "__origin__", kind) is np.ndarray:
        name, packed, *shape = (_BARE, value) if isinstance(value, str) else value
        numbers = np.frombuffer(msgspec.convert(packed, bytes), _DTYPES[name])
        return numbers.reshape(*shape or (-1,)).astype(_dtype(kind))
    if kind is pa.Array:
        return pa.ipc.open_stream(msgspec.convert(value, bytes)).read_all().column(0).chunk(0)
    if kind is object:
        return value
    raise NotImplementedError(f"{kind} is not read from JSON")


@cache
def _dtype(array: Any) -> Any:
    """The type of numbers that an annotation names, such as `npt.NDArray[np.int32]`."""
    return get_args(get_args(array)[1])[0]


_encoder = msgspec.json.Encoder(enc_hook=_plain)
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}
_making = threading.Lock()
