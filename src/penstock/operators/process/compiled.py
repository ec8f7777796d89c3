"""Compiled handlers: the decorator, and the kernel that calls such a handler for many keys.

A kernel is a loop over keys (or due timers), made of source text for the processor's state and columns, with
the user's handler compiled into it by numba. It reads and writes arrays of records (see `compiled_calls`).
"""

from __future__ import annotations

import dis
import hashlib
import inspect
import linecache
import re
from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, update_wrapper
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, TypeVar, cast

import numpy as np
import pyarrow as pa

from penstock.errors import FlowError
from penstock.kernel_cache import own_kernels
from penstock.operators.process.processor import KeyedProcessor
from penstock.state.arrays import physical
from penstock.state.variables.handle import StateHandle
from penstock.state.variables.timers import DUE
from penstock.state.variables.value_state import ValueState

_MARK = "__penstock_compiled__"
HANDLERS = ("handle_input_rows", "handle_expired_timer")
"""Methods of a processor that can be compiled."""
_HINT = (
    "a compiled handler knows numbers, value state, timers and what numba compiles: use loops over rows, "
    "and functions with @numba.njit instead of methods; or remove @compiled, or define handle_batch"
)
_REASONS = (
    r"(the column '|a row has |the default must|the value must|the kind of time|Unknown attribute|"
    r"Cannot unify|"
    r"Use of unsupported|Untyped global|No implementation of function Function\(<built-in|Cannot determine|"
    r"NameError|does not support|cannot be )"
)
"""What the lines of numba's messages say that help most, and those of ours (see `compiled_views`)."""
_Handler = TypeVar("_Handler", bound=Callable[..., Any])

TIMER_RECORD = np.dtype(
    [("processing", np.int64), ("event", np.int64), ("changed", np.uint8)], align=True
)
"""The timers of a key, as in the columns `DUE`."""
TIMES_RECORD = np.dtype([("processing", np.int64), ("event", np.int64)])
assert tuple(f"__due_{name}" for name in ("processing", "event")) == DUE


def compiled(handler: _Handler) -> _Handler:
    """Compile `handle_input_rows` or `handle_expired_timer` of a `KeyedProcessor` to machine code.

    The code stays the same, and does the same. It can use value state, timers, numbers that are attributes
    of the processor, and what numba compiles. In it, timestamps and dates are integers in their unit. Text
    can be compared and yielded, no more. A flow with a handler that cannot be compiled does not start.

    Calls that meet a null, fail, or set two timers of a kind for a key are made in Python, by the same code.

    >>> class Count(KeyedProcessor):
    ...     output_schema = "word string, n long"
    ...
    ...     def init(self, handle):
    ...         self.seen = handle.get_value_state("seen", "n long")
    ...
    ...     @compiled
    ...     def handle_input_rows(self, key, rows, timers):
    ...         (n,) = self.seen.get((0,))
    ...         for row in rows:
    ...             n += 1
    ...         self.seen.update((n,))
    ...         yield (key[0], n)
    """
    if not isinstance(handler, FunctionType) or handler.__name__ not in HANDLERS:
        raise FlowError(
            f"{getattr(handler, '__qualname__', handler)} cannot be compiled",
            hint=f"use @compiled for {' and '.join(HANDLERS)} of a KeyedProcessor",
        )
    # a copy: a base class may have the same function, and call it in Python
    made = FunctionType(
        handler.__code__,
        handler.__globals__,
        handler.__name__,
        handler.__defaults__,
        handler.__closure__,
    )
    made.__kwdefaults__ = handler.__kwdefaults__
    setattr(update_wrapper(made, handler), _MARK, True)
    return cast(_Handler, made)


def is_compiled(processor: KeyedProcessor, handler: str) -> bool:
    """Whether a handler of a processor has the decorator."""
    return hasattr(getattr(type(processor), handler, None), _MARK)


@dataclass(frozen=True)
class Kernel:
    """A compiled handler, and what it needs."""

    run: Callable[..., tuple[int, Any, Any]]
    """Calls the handler for each key; see `_source` for its arguments and result."""
    columns: tuple[str, ...]
    """Columns of the input that the handler uses."""
    states: tuple[tuple[str, ValueState], ...]
    """Value states that it uses, by the name of the processor's attribute."""
    numbers: tuple[str, ...]
    """Attributes of the processor that are numbers."""
    by_watermark: bool
    """Whether it uses the watermark, which may be None."""
    output: np.dtype[Any]


def kernel(
    processor: KeyedProcessor, handle: StateHandle, name: str, input: pa.Schema, output: pa.Schema
) -> Kernel:
    """Compile a handler of a processor whose `init` was called. Raises FlowError if that is not possible."""
    handler: FunctionType = getattr(type(processor), name)
    code = handler.__code__
    _check_stores(handler)
    states, numbers, handles = [], [], []
    for used in dict.fromkeys(code.co_names):
        value = getattr(processor, used, None)
        if isinstance(value, ValueState):
            _check_state(handler, value)
            states.append((used, value))
        elif value is handle:
            handles.append(used)
        elif isinstance(value, (bool, int, float, np.number)):
            numbers.append(used)
        elif value is not None and used in vars(processor):
            raise _refusal(handler, None, f"self.{used} is {_kind(value)}")
    words = {*code.co_names, *(text for text in code.co_consts if isinstance(text, str))}
    columns = tuple(column for column in input.names if column in words)
    source = _source(handler, name, handle, states, numbers, handles, output)
    run = _compiled(source, handler, _names_of(states, numbers, handles))
    by_watermark = bool(words & {"watermark_ms", "get_current_watermark_in_ms"})
    form = record(list(output.types))
    return Kernel(run, columns, tuple(states), tuple(numbers), by_watermark, form)


def record(types: Sequence[pa.DataType], *flags: str) -> np.dtype[Any]:
    """The type of records with these columns as f0, f1, ..., and with flags. A column without a fixed width
    has numbers that stand for its values."""
    fields = [(flag, np.dtype(np.uint8)) for flag in flags]
    fields += [(f"f{at}", physical(type) or np.dtype(np.int64)) for at, type in enumerate(types)]
    return np.dtype(fields or [("none", np.dtype(np.uint8))], align=True)


def row_record(input: pa.Schema, columns: Sequence[str]) -> np.dtype[Any]:
    """The type of the records of input rows."""
    types = [(name, physical(input.field(name).type) or np.dtype(np.int64)) for name in columns]
    return np.dtype(types or [("none", np.dtype(np.uint8))], align=True)


def compile_now(kernel: Kernel, arguments: tuple[Any, ...], handler: Callable[..., Any]) -> None:
    """Compile a kernel, by a call without keys. Raises FlowError if that is not possible."""
    from numba.core.errors import NumbaError

    try:
        kernel.run(*arguments)
    except NumbaError as error:
        raise _refusal(handler, *_where(handler, str(error))) from error
    except KeyError as error:  # of a record, for a field that it does not have
        name = error.args[0]
        raise _refusal(handler, _line_of(handler, name), f"there is no column {name!r}") from error


def _names_of(states: Any, numbers: list[str], handles: list[str]) -> list[str]:
    return [*(attribute for attribute, _ in states), *handles, *numbers]


def _source(
    handler: FunctionType,
    name: str,
    handle: StateHandle,
    states: list[tuple[str, ValueState]],
    numbers: list[str],
    handles: list[str],
    output: pa.Schema,
) -> str:
    """The source text of a kernel. `failed` gets 1 for calls that must be made in Python. The kernel returns
    the number of output rows, the rows, and for each the number of the input row or timer that caused it."""
    views = [
        f'view("value", "{",".join(state.schema.names)}", state{at}, i)'
        for at, (_, state) in enumerate(states)
    ]
    views += ['view("timers", "", timers, i)' for _ in handles]
    views += [f"number{at}" for at in range(len(numbers))]
    keys = "".join(f"keys[i].f{at}, " for at in range(len(handle.cells.codec.schema)))
    times = 'view("times", "", times, 0)'
    by_rows = name == "handle_input_rows"
    if by_rows:
        first, rest = "starts[i]", f"({keys}), feed(rows, starts[i], ends[i], read), {times}"
    else:
        first, rest = "i", f"({keys}), {times}, Expired(starts[i], KINDS[ends[i]])"
    cause = "max(read[0] - 1, starts[i])" if by_rows else "i"
    call = f"handler(Self({''.join(v + ', ' for v in views)}), {rest})"
    if not inspect.isgeneratorfunction(handler):
        body = f"    {call}\n"
    else:
        stores = "".join(
            f"        record.f{at} = fitted(row[{at}], record.f{at}, {field.name!r})\n"
            for at, field in enumerate(output)
        )
        body = (
            f"    for row in {call}:\n"
            f"        check_width(row, {len(output)})\n"
            f"        if n == len(out):\n"
            f"            out, causes = doubled(out), doubled(causes)\n"
            f"        record = out[n]\n{stores}"
            f"        causes[n] = {cause}\n"
            f"        n += 1\n"
        )
    given = ["rows", "starts", "ends", "keys", "timers", "times"]
    more = [f"state{at}" for at in range(len(states))]
    more += [f"number{at}" for at in range(len(numbers))]
    # a function of its own, since numba does not notice an exception of a generator inside of `try`
    return (
        f"def call(i, n, out, causes, read, {', '.join(given + more)}):\n"
        f"    read[0] = {first}\n{body}"
        f"    return n, out, causes\n\n\n"
        f"def kernel({', '.join([*given, 'out', 'causes', 'failed', *more])}):\n"
        f"    n = 0\n"
        f"    read = np.zeros(1, np.int64)\n"
        f"    for i in range(len(starts)):\n"
        f"        try:\n"
        f"            n, out, causes = call(i, n, out, causes, read, {', '.join(given + more)})\n"
        f"        except Exception:\n"
        f"            failed[i] = 1\n"
        f"    return n, out, causes\n"
    )


@lru_cache(maxsize=64)
def _made(source: str, key: str, handler: FunctionType, names: tuple[str, ...]) -> Any:
    """A kernel. It is compiled once in a process, and kept in a file for other processes."""
    import numba

    from penstock.operators.process import compiled_parts, compiled_views

    space: dict[str, Any] = {
        "np": np,
        "Self": namedtuple("Self", names),
        "handler": numba.njit(handler),
        "view": compiled_views.view,
        "fitted": compiled_views.fitted,
        **vars(compiled_parts),
    }
    # numba keeps compiled code beside the file of its source
    path = own_kernels() / f"kernel_{key}.py"
    if not path.exists():
        part = path.with_suffix(f".{id(space)}.part")
        part.write_text(source)
        part.replace(path)
    exec(compile(source, str(path), "exec"), space)
    space["call"] = numba.njit(space["call"])
    return numba.njit(cache=True, nogil=True)(space["kernel"])


def _compiled(source: str, handler: FunctionType, names: list[str]) -> Any:
    import numba

    digest = hashlib.sha256(f"{numba.__version__} {source} {names}".encode())
    for part in ("compiled_parts.py", "compiled_views.py"):
        digest.update(Path(__file__).with_name(part).read_bytes())
    for fact in _facts(handler, set()):
        digest.update(fact.encode())
    return _made(source, digest.hexdigest()[:24], handler, tuple(names))


def _facts(function: Any, seen: set[int]) -> list[str]:
    """All that the machine code of a function depends on, as text: its code, and the globals that it uses."""
    function = getattr(function, "py_func", function)  # of a function that numba compiles
    if not isinstance(function, FunctionType) or id(function) in seen:
        return [repr(function)]
    seen.add(id(function))
    code = function.__code__
    held = [cell.cell_contents for cell in function.__closure__ or ()]
    held += [function.__globals__[n] for n in code.co_names if n in function.__globals__]
    facts = [*_code_facts(code), repr(function.__defaults__)]
    return facts + [fact for value in held for fact in _facts(value, seen)]


def _code_facts(code: CodeType) -> list[str]:
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    plain = [repr(constant) for constant in code.co_consts if not isinstance(constant, CodeType)]
    own = [code.co_code.hex(), *plain, repr((code.co_names, code.co_varnames, code.co_freevars))]
    return own + [fact for part in inner for fact in _code_facts(part)]


# -- refusals


def _check_stores(handler: FunctionType) -> None:
    for line, instruction in _instructions(handler):
        if instruction.opname in ("STORE_ATTR", "DELETE_ATTR"):
            problem = f"it sets the attribute {instruction.argval!r}: use update() of value state"
            raise _refusal(handler, line, problem)


def _instructions(handler: Callable[..., Any]) -> Iterator[tuple[int, dis.Instruction]]:
    """The instructions of a handler, with their lines."""
    line = handler.__code__.co_firstlineno
    for instruction in dis.get_instructions(handler):
        position = instruction.positions
        line = (position.lineno if position is not None else None) or line
        yield line, instruction


def _line_of(handler: Callable[..., Any], name: Any) -> int | None:
    return next((line for line, used in _instructions(handler) if used.argval == name), None)


def _check_state(handler: FunctionType, state: ValueState) -> None:
    for field in state.schema:
        if physical(field.type) is None or pa.types.is_temporal(field.type):
            problem = f"the state {state.name!r} has a field {field.name!r} of {field.type}"
            raise _refusal(handler, None, f"{problem}: use numbers, such as long or double")


def _kind(value: Any) -> str:
    kind = getattr(value, "kind", "")
    return f"{kind} state" if kind else f"a {type(value).__name__}"


def _where(handler: Callable[..., Any], message: str) -> tuple[int | None, str]:
    """The line of the handler that a message of numba is about, and the message in short."""
    file = Path(inspect.unwrap(handler).__code__.co_filename).name
    lines = [
        int(line)
        for path, line in re.findall(r'File "([^"]+)", line (\d+)', message)
        if Path(path).name == file
    ]
    text = re.sub(r"\x1b\[[0-9;]*m", "", message)
    said = [line.strip() for line in text.splitlines() if line.strip()]
    # the innermost reason comes last
    reasons = [line for line in said if re.search(_REASONS, line)]
    problem = re.sub(rf"^.*?(?={_REASONS})", "", reasons[-1]) if reasons else said[1:2] or said
    return (lines[-1] if lines else None), problem if isinstance(problem, str) else problem[0]


def _refusal(handler: Callable[..., Any], line: int | None, problem: str) -> FlowError:
    at = ""
    if line is not None:
        text = linecache.getline(handler.__code__.co_filename, line).strip()
        at = f" at line {line}" + (f", `{text}`" if text else "")
    name = handler.__qualname__.rpartition("<locals>.")[2]
    return FlowError(f"{name} cannot be compiled{at}: {problem}", hint=_HINT)
