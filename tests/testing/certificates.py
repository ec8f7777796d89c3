"""Certificates for tests: an authority, and certificates that it has signed."""

from __future__ import annotations

import subprocess
from pathlib import Path

from penstock.settings import Tls

_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


class Authority:
    """A certificate authority with its files in a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder, self.certificate = folder, str(folder / "ca.crt")
        self._key = str(folder / "ca.key")
        made = ("-keyout", self._key, "-out", self.certificate)
        _openssl("req", "-x509", *_NEW_KEY, *made, "-days", "2", "-subj", "/CN=authority")

    def tls(self, *names: str, name: str | None = None, mutual: bool = True) -> Tls:
        """A certificate for these names, such as IP:127.0.0.1 or DNS:penstock."""
        at = self._folder / f"node{len(list(self._folder.glob('*.csr')))}"
        request, key, made, extension = (str(at.with_suffix(s)) for s in _SUFFIXES)
        Path(extension).write_text("subjectAltName=" + ",".join(names))
        _openssl("req", *_NEW_KEY, "-keyout", key, "-out", request, "-subj", "/CN=node")
        by = ("-CA", self.certificate, "-CAkey", self._key, "-CAcreateserial")
        _openssl("x509", "-req", "-in", request, *by, "-out", made, "-extfile", extension)
        return Tls(made, key, self.certificate, name, mutual)


_SUFFIXES = (".csr", ".key", ".crt", ".ext")


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)
