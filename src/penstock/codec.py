"""The JSON codec for messages, plans, manifests, journals and events.

A value is a frozen dataclass whose fields are the JSON keys. Reading checks types, ignores unknown keys and
fills in defaults for missing ones, so that older files stay readable when a field is added.

Arrays of numpy and Arrow are written as base64, which is compact and exact. A single number that is not
finite (nan, inf) becomes null.
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
_HINT = (
    "use the same release of Penstock everywhere; if you do, the data is damaged: restore a copy"
)
_DTYPES = {
    dtype.str: dtype for code in "?bBhHiIqQfd" for dtype in [np.dtype(code).newbyteorder("<")]
}
"""Number types allowed in an array, by their written names."""
_BARE = "<i4"
"""Number type of arrays that are written without a type name, as route tables in checkpoints always were."""


def encode(value: object) -> bytes:
    """Encode a value as JSON text in UTF-8.

    >>> encode({"slots": np.arange(3), "rate": np.float64(1.5)})
    b'{"slots":["<i8","AAAAAAAAAAABAAAAAAAAAAIAAAAAAAAA"],"rate":1.5}'
    """
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:  # a lone surrogate, as in an error about a file's name
        return json.dumps(to_plain(value), ensure_ascii=False).encode(errors="replace")


def text(value: object, indent: int = 0) -> str:
    """Encode a value as a JSON string, on several lines if `indent` is above 0.

    >>> print(text({"hosts": ["a"]}, indent=2))
    {
      "hosts": [
        "a"
      ]
    }
    """
    encoded = encode(value).decode()
    return msgspec.json.format(encoded, indent=indent) if indent else encoded


def lines(values: Iterable[object]) -> bytes:
    """Encode values as JSON Lines: one value per line."""
    return b"".join(encode(value) + b"\n" for value in values)


def decode(data: bytes | str, kind: type[T]) -> T:
    """Decode JSON text into a value of type `kind`. For `object`, any plain JSON value is accepted.

    >>> decode(b'[1, 2]', tuple[int, ...])
    (1, 2)
    >>> decode(b'["a"]', tuple[int, ...])
    Traceback (most recent call last):
    ...
    penstock.errors.ProtocolError: not a valid tuple: Expected `int`, got `str` - at `$[0]`. What to do: \
use the same release of Penstock everywhere; if you do, the data is damaged: restore a copy
    """
    wanted: Any = kind
    decoder = _decoder(wanted)
    try:
        return cast(T, decoder.decode(data))
    except _WRONG as wrong:
        raise _refused(kind, wrong) from wrong


def to_plain(value: object) -> Any:
    """Convert a value to plain JSON values: dicts, lists, numbers, strings."""
    return msgspec.to_builtins(value, enc_hook=_plain, str_keys=True)


def from_plain(value: object, kind: type[T]) -> T:
    """Convert plain JSON values back to a value of type `kind`; the inverse of `to_plain`."""
    _decoder(kind)
    try:
        return msgspec.convert(value, kind, dec_hook=_rich, str_keys=True)
    except _WRONG as wrong:
        raise _refused(kind, wrong) from wrong


def _refused(kind: Any, wrong: Exception) -> ProtocolError:
    return ProtocolError(f"not a valid {getattr(kind, '__name__', kind)}: {wrong}", hint=_HINT)


def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """The cached decoder of a type.

    msgspec publishes its description of a dataclass to all threads while it still fills it in, and a thread
    that uses it then crashes. So one thread at a time makes decoders, including those of nested types, and
    no type is read before its decoder is made.
    """
    decoder = _decoders.get(kind)
    if decoder is None:
        with _making:
            decoder = _decoders.setdefault(kind, msgspec.json.Decoder(kind, dec_hook=_rich))
    return decoder


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
    raise NotImplementedError(f"{type(value).__name__} cannot be written as JSON")


def _packed(array: npt.NDArray[Any]) -> Any:
    """Pack an array: its number type, its bytes in little-endian order, and its shape unless it has one
    dimension."""
    dtype = array.dtype.newbyteorder("<")
    if dtype.str not in _DTYPES:
        raise NotImplementedError(f"an array of type {dtype} cannot be written as JSON")
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
    raise NotImplementedError(f"{kind} cannot be read from JSON")


@cache
def _dtype(array: Any) -> Any:
    """The number type in an array annotation, such as `npt.NDArray[np.int32]`."""
    return get_args(get_args(array)[1])[0]


_encoder = msgspec.json.Encoder(enc_hook=_plain)
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}
_making = threading.Lock()
