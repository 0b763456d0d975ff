# SPDX-License-Identifier: Apache-2.0
"""Where Horovod's ranks find each other: a store of keys over HTTP, on the loopback only.

`horovodrun` brings one that listens on every interface.
"""

import contextlib
import http.server
import threading
from collections.abc import Iterator


class _Store(http.server.BaseHTTPRequestHandler):
    values: dict[str, bytes]

    def do_GET(self) -> None:
        value = self.values.get(self.path)
        self._answer(404 if value is None else 200, value or b"")

    def do_PUT(self) -> None:
        self.values[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(200, b"")

    def do_DELETE(self) -> None:
        self.values.pop(self.path, None)
        self._answer(200, b"")

    def _answer(self, code: int, value: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(value)))
        self.end_headers()
        self.wfile.write(value)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing of requests."""


@contextlib.contextmanager
def rendezvous() -> Iterator[int]:
    """Serves a store; yields its port."""
    store = type("Store", (_Store,), {"values": {}})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), store) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
