"""A fingerprint of user code: equal for the same code and the values that it uses, in any process.

For a function, it covers the instructions, constants, defaults, closure variables and the globals that it
reads, recursively through user code. Code of Python itself, or of a package with a version, counts by its
name and that version. File names and line numbers do not count.
"""

from __future__ import annotations

import dis
import hashlib
import sys
import types
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

_LEFT_OUT = {
    "__dict__", "__weakref__", "__module__", "__doc__", "__annotations__", "__slotnames__", "_abc_impl",
    "__abstractmethods__", "__firstlineno__", "__static_attributes__", "__annotate_func__",
}  # fmt: skip
"""Attributes of a class that do not affect what it does, or differ between processes."""


def code_mark(value: object) -> str:
    """A short fingerprint of a function, or of any other value.

    >>> code_mark({"a": 1, "b": {2, 3}}) == code_mark({"b": {3, 2}, "a": 1}) != code_mark({"a": 1})
    True
    """
    return _Walk().digest(value).hex()[:16]


@cache
def penstock_version() -> str:
    """The installed release of Penstock; "" if it runs from source files only."""
    try:
        return version("penstock")
    except PackageNotFoundError:
        return ""


class _Walk:
    """One traversal of a value. It remembers the objects it has visited, so that cycles end."""

    def __init__(self) -> None:
        self._met: dict[int, tuple[int, Any]] = {}

    def digest(self, value: Any) -> bytes:
        if value is None or isinstance(value, bool | int | float | complex | str | bytes):
            return _hash(type(value).__name__, repr(value))
        if isinstance(value, types.CodeType):
            return self._code(value)
        known = self._met.get(id(value))
        if known is not None:
            return _hash("again", str(known[0]))
        self._met[id(value)] = (len(self._met), value)
        return self._compound(value)

    def _compound(self, value: Any) -> bytes:
        if isinstance(value, types.ModuleType):
            return _hash("module", value.__name__, _version(value.__name__) or "")
        if isinstance(value, tuple | list):
            return _hash(type(value).__name__, *map(self.digest, value))
        if isinstance(value, set | frozenset):
            return _hash("set", *sorted(_Walk().digest(item) for item in value))
        if isinstance(value, dict):
            pairs = {_Walk().digest(key): item for key, item in value.items()}
            return _hash(
                "dict", *(p for key in sorted(pairs) for p in (key, self.digest(pairs[key])))
            )
        if isinstance(value, partial):
            return _hash("partial", *map(self.digest, (value.func, value.args, value.keywords)))
        if isinstance(value, types.MethodType):
            return _hash("method", self.digest(value.__func__), self.digest(value.__self__))
        if isinstance(value, staticmethod | classmethod):
            return _hash(type(value).__name__, self.digest(value.__func__))
        if isinstance(value, property):
            return _hash("property", *map(self.digest, (value.fget, value.fset)))
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, type):
            return self._class(value)
        return self._object(value)

    def _function(self, function: types.FunctionType) -> bytes:
        release = _version(function.__module__)
        if release is not None:
            return _hash("function", function.__module__, function.__qualname__, release)
        names = sorted(_global_names(function.__code__) & function.__globals__.keys())
        return _hash(
            "function",
            self._code(function.__code__),
            self.digest(function.__defaults__),
            self.digest(function.__kwdefaults__),
            *(self.digest(_content(cell)) for cell in function.__closure__ or ()),
            *(part for n in names for part in (n, self.digest(function.__globals__[n]))),
        )

    def _code(self, code: types.CodeType) -> bytes:
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        return _hash(
            "code", code.co_code, str(code.co_flags), repr(names), *map(self.digest, code.co_consts)
        )

    def _class(self, kind: type) -> bytes:
        release = _version(kind.__module__)
        if release is not None:
            return _hash("class", kind.__module__, kind.__qualname__, release)
        parts = {name: item for name, item in vars(kind).items() if name not in _LEFT_OUT}
        return _hash(
            "class",
            kind.__qualname__,
            *(part for n in sorted(parts) for part in (n, self.digest(parts[n]))),
            *map(self.digest, kind.__bases__),
        )

    def _object(self, value: Any) -> bytes:
        try:
            reduced = value.__reduce_ex__(4)
        except Exception:  # an object that cannot be pickled cannot be shipped either
            return _hash("object", self.digest(type(value)))
        if isinstance(reduced, str):
            return _hash("object", self.digest(type(value)), reduced)
        parts = [list(part) if hasattr(part, "__next__") else part for part in reduced]
        return _hash("object", *map(self.digest, parts))


def _hash(*parts: str | bytes) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode(errors="surrogatepass") if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.digest()


def _version(module: str | None) -> str | None:
    """The version of the package that a module belongs to; None for a user's own module."""
    top = (module or "").split(".")[0]
    if top in sys.stdlib_module_names:
        return f"{sys.version_info.major}.{sys.version_info.minor}"
    if top == "penstock":
        return penstock_version()
    release = getattr(sys.modules.get(top), "__version__", None)
    return None if release is None else str(release)


def _global_names(code: types.CodeType) -> set[str]:
    names = {
        instruction.argval
        for instruction in dis.get_instructions(code)
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            names |= _global_names(const)
    return names


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None
