"""Requests to burst workers over HTTP, and their answers: headers and signatures.

    POST url    body: a request in Arrow      ──► 200, body: the answer in Arrow
    POST url    no body, penstock-hold-ms: n  ──► 200, no body, after n milliseconds: keeps a worker warm

An answer has `penstock-mark` (the mark of the flow), `penstock-ms` (milliseconds of work) and `penstock-cold`
(1 for the first answer of a worker). Other statuses: 401 the signature is wrong, 409 another flow, 413 too
large, 422 the flow's code failed, 429 busy.

Both sides know a key, which never travels. A request is signed with its time and its body. An answer is
signed together with the request's signature: so an answer to another request is not taken for this one.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

TIME, SIGNATURE, HOLD_MS = "penstock-time", "penstock-signature", "penstock-hold-ms"
MARK, MS, COLD = "penstock-mark", "penstock-ms", "penstock-cold"
ARROW = "application/vnd.apache.arrow.stream"
_FACTS = (MARK, MS, COLD)
_CLOCKS_APART_S = 300
"""Largest difference between the clocks of both sides, in seconds. An older request is refused."""


def request_headers(key: str, body: bytes, now_s: float, hold_ms: int | None) -> dict[str, str]:
    """Headers of a request at a time in seconds since 1970. Without a key it is not signed."""
    headers = {TIME: str(int(now_s)), "content-type": ARROW, "accept-encoding": "identity"}
    if hold_ms is not None:
        headers[HOLD_MS] = str(hold_ms)
    return headers | ({SIGNATURE: _request_signature(key, headers, body)} if key else {})


def request_fits(key: str, headers: Mapping[str, str], body: bytes, now_s: float) -> bool:
    """Whether a request was signed with this key, a short while ago.

    >>> headers = request_headers("key", b"rows", 1000.0, None)
    >>> [request_fits(*how) for how in (
    ...     ("key", headers, b"rows", 1001.0), ("key", headers, b"other", 1001.0),
    ...     ("other", headers, b"rows", 1001.0), ("key", headers, b"rows", 2000.0))]
    [True, False, False, False]
    """
    if not key:
        return True
    time_text = headers.get(TIME, "")
    if not time_text.isdecimal() or abs(now_s - int(time_text)) > _CLOCKS_APART_S:
        return False
    return _equal(headers.get(SIGNATURE, ""), _request_signature(key, headers, body))


def answer_headers(
    key: str, asked: Mapping[str, str], body: bytes, mark: str, ms: float, cold: bool
) -> dict[str, str]:
    """Headers of an answer to a request with the headers `asked`."""
    facts = {MARK: mark, MS: f"{ms:.3f}", COLD: str(int(cold))}
    return facts | ({SIGNATURE: _answer_signature(key, asked, facts, body)} if key else {})


def answer_fits(
    key: str, asked: Mapping[str, str], headers: Mapping[str, str], body: bytes
) -> bool:
    """Whether an answer was signed with this key, as the answer to this request.

    >>> asked, other = (request_headers("key", rows, 1000.0, None) for rows in (b"a", b"b"))
    >>> headers = answer_headers("key", asked, b"sum", "mark", 3.0, cold=False)
    >>> [answer_fits("key", which, headers, b"sum") for which in (asked, other)]
    [True, False]
    """
    if not key:
        return True
    return _equal(headers.get(SIGNATURE, ""), _answer_signature(key, asked, headers, body))


def _request_signature(key: str, headers: Mapping[str, str], body: bytes) -> str:
    return _signature(key, "request", headers.get(TIME, ""), headers.get(HOLD_MS, ""), body)


def _answer_signature(
    key: str, asked: Mapping[str, str], headers: Mapping[str, str], body: bytes
) -> str:
    facts = [headers.get(name, "") for name in _FACTS]
    return _signature(key, "answer", asked.get(SIGNATURE, ""), *facts, body)


def _signature(key: str, *parts: str | bytes) -> str:
    texts = [hashlib.sha256(p.encode() if isinstance(p, str) else p).digest() for p in parts]
    return hmac.new(key.encode(), b"".join(texts), hashlib.sha256).hexdigest()


def _equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(errors="replace"), other.encode())
