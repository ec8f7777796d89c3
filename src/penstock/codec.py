"""One codec for everything that leaves a process as JSON: messages, plans, manifests, journal, events.

A value is a frozen dataclass; its fields are its JSON keys. Reading checks types, ignores keys that it
does not know, and fills in defaults for keys that are missing, so that a newer field does not make an
older file unreadable.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar, cast, get_args

import msgspec
import numpy as np

from penstock.errors import ProtocolError

T = TypeVar("T")


def encode(value: object) -> bytes:
    """A value as JSON text.

    >>> encode({"slots": np.arange(3), "rate": np.float64(1.5)})
    b'{"slots":[0,1,2],"rate":1.5}'
    """
    return _encoder.encode(value)


def decode(data: bytes | str, kind: type[T]) -> T:
    """The value of this type that the JSON text holds.

    >>> decode(b'[1, 2]', tuple[int, ...])
    (1, 2)
    >>> decode(b'["a"]', tuple[int, ...])
    Traceback (most recent call last):
    ...
    penstock.errors.ProtocolError: this is no tuple: Expected `int`, got `str` - at `$[0]`
    """
    wanted: Any = kind
    try:
        return cast(T, _decoder(wanted).decode(data))
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"this is no {getattr(kind, '__name__', kind)}: {error}") from error


def to_plain(value: object) -> Any:
    """A value as plain JSON values: dicts, lists, numbers, text."""
    return msgspec.to_builtins(value, enc_hook=_plain, str_keys=True)


def from_plain(value: object, kind: type[T]) -> T:
    """Undo `to_plain`."""
    try:
        return msgspec.convert(value, kind, dec_hook=_rich, str_keys=True)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"this is no {getattr(kind, '__name__', kind)}: {error}") from error


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind, dec_hook=_rich)


def _plain(value: object) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(f"{type(value).__name__} is no JSON value")


def _rich(kind: Any, value: Any) -> Any:
    """An array of the dtype that its annotation names."""
    if getattr(kind, "__origin__", kind) is np.ndarray:
        dtype = get_args(get_args(kind)[1])[0] if get_args(kind) else None
        return np.asarray(value, dtype)
    raise NotImplementedError(f"{kind} is not read from JSON")


_encoder = msgspec.json.Encoder(enc_hook=_plain)
