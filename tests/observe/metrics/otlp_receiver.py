"""A receiver of OTLP over HTTP, as a collector has one, which keeps what it gets."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


class Receiver:
    """Spans and metrics that arrived, in the classes of OpenTelemetry's protocol."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.metrics: list[Any] = []
        self.resources: list[Any] = []
        self.url = ""

    def take(self, path: str, body: bytes) -> bytes:
        if path == "/v1/traces":
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.resources.append(resource.resource)
                self.spans += [span for scope in resource.scope_spans for span in scope.spans]
            return ExportTraceServiceResponse().SerializeToString()
        assert path == "/v1/metrics"
        for of in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            self.resources.append(of.resource)
            self.metrics += [metric for scope in of.scope_metrics for metric in scope.metrics]
        return ExportMetricsServiceResponse().SerializeToString()

    def newest(self, name: str) -> Any:
        """The newest metric of a name."""
        return [metric for metric in self.metrics if metric.name == name][-1]


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver on a free port of this machine."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            answer = receiver.take(self.path, body)
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield receiver
        server.shutdown()


def attributes(owner: Any) -> dict[str, Any]:
    """Attributes of a span, a data point or a resource."""
    return {
        pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in owner.attributes
    }
