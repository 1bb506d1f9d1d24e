"""A coordinator that is none, in a pod of a tenant: falsecoordinator.py HOW. Standard library only."""

import gzip
import itertools
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT = 29402
ANSWERS = ("garbage", "endless", "compressed", "redirecting", "silent")
"""Answers that it can be started with."""
BOMB = gzip.compress(b" " * (64 << 20))


class Answers(BaseHTTPRequestHandler):
    def do_PUT(self) -> None:
        print("asked", flush=True)
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        getattr(self, sys.argv[1])()

    def log_message(self, *_: object) -> None:
        """Nothing."""

    def garbage(self) -> None:
        self._begin(200, "Content-Length: 65536")
        self.wfile.write(os.urandom(65536))

    def endless(self) -> None:
        self._begin(200)
        for _ in itertools.count():
            self.wfile.write(b" " * 65536)

    def compressed(self) -> None:
        self._begin(200, "Content-Encoding: gzip", f"Content-Length: {len(BOMB)}")
        self.wfile.write(BOMB)

    def redirecting(self) -> None:
        self._begin(307, f"Location: http://{self.headers['Host']}/desired", "Content-Length: 0")

    def silent(self) -> None:
        threading.Event().wait()

    def _begin(self, status: int, *headers: str) -> None:
        self.send_response(status)
        for each in headers:
            self.send_header(*each.split(": ", 1))
        self.end_headers()


if __name__ == "__main__":
    ThreadingHTTPServer(("", PORT), Answers).serve_forever()
