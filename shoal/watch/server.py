"""The server of the page: it answers GET alone and writes nothing."""

import socket
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from shoal.errors import ShoalError
from shoal.watch.answers import Answer, Answers
from shoal.watch.guard import HEADERS, Guard

IDLE_SECONDS = 60
"""A connection that asks for nothing is closed."""


class PageServer(ThreadingHTTPServer):
    """Serves the page at an address."""

    daemon_threads = True

    def __init__(self, answers: Answers, guard: Guard):
        self.answers, self.guard = answers, guard
        self.address_family = socket.AF_INET6 if ":" in guard.host else socket.AF_INET
        try:
            super().__init__((guard.host, guard.port), Handler)
        except OSError as error:
            raise ShoalError(
                f"cannot serve at {guard.host} port {guard.port}: {error.strerror or error}; "
                "choose another --port"
            ) from error
        self.guard = guard._replace(port=self.server_address[1])  # the one that was found, for port 0

    @property
    def url(self) -> str:
        """The address for a browser on this machine."""
        host = {"0.0.0.0": "localhost", "::": "localhost"}.get(self.guard.host, self.guard.host)
        token = f"/?token={self.guard.token}" if self.guard.token else ""
        return f"http://{f'[{host}]' if ':' in host else host}:{self.guard.port}{token}"

    def handle_error(self, request, client_address) -> None:
        """A browser that goes away in the middle of an answer is no error."""


class Handler(BaseHTTPRequestHandler):
    """One connection of a browser."""

    server: PageServer
    protocol_version = "HTTP/1.1"
    timeout = IDLE_SECONDS
    server_version, sys_version = "shoal", ""

    def do_GET(self) -> None:
        """Answer, unless the guard refuses."""
        guard, parts = self.server.guard, urlsplit(self.path)
        given = parse_qs(parts.query).get("token", [""])[0]
        if parts.path == "/" and guard.is_token(given):
            cookie = f"{guard.cookie}={guard.pass_value}; HttpOnly; SameSite=Lax; Path=/"
            self._send(Answer(b"", "text/plain", 303), {"Location": "/", "Set-Cookie": cookie})
        elif reason := guard.refusal(self.headers, parts.path):
            self._send(Answer(f"{reason}\n".encode(), "text/plain", 403))
        else:
            self._answer(self.server.answers.find(self.path))

    do_HEAD = do_GET

    def do_POST(self) -> None:
        """Nothing can be written here."""
        self.close_connection = True
        self._send(Answer(b"this page can only be read\n", "text/plain", 405), {"Allow": "GET, HEAD"})

    do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_POST

    def _answer(self, answer: Answer) -> None:
        is_film = answer.kind.startswith("video/")
        if answer.tag and self.headers.get("If-None-Match") == answer.tag:
            self._send(Answer(b"", answer.kind, 304, answer.tag))
        elif is_film and (part := _range(self.headers.get("Range"), len(answer.body))):
            first, last = part
            body, size = answer.body[first : last + 1], len(answer.body)
            self._send(Answer(body, answer.kind, 206), {"Content-Range": f"bytes {first}-{last}/{size}"})
        else:
            self._send(answer)

    def _send(self, answer: Answer, more: dict[str, str] | None = None) -> None:
        self.send_response(answer.status)
        text = answer.kind.startswith("text/") or answer.kind == "application/json"
        headers = {
            "Content-Type": answer.kind + ("; charset=utf-8" if text else ""),
            "Content-Length": str(len(answer.body)),
            **({"ETag": answer.tag} if answer.tag else {}),
            **HEADERS,
            **(more or {}),
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def log_message(self, format: str, *args) -> None:
        """The terminal stays quiet."""


def _range(header: str | None, size: int) -> tuple[int, int] | None:
    """The first and last byte that a browser asks for; None where it wants all of them.

    >>> _range("bytes=0-", 10), _range("bytes=4-6", 10), _range("bytes=-3", 10), _range(None, 10)
    ((0, 9), (4, 6), (7, 9), None)
    """
    unit, _, part = (header or "").partition("=")
    first, dash, last = part.partition("-")
    if unit != "bytes" or not dash or not (first + last).isdecimal():
        return None
    begin = int(first) if first else max(0, size - int(last))
    end = min(int(last), size - 1) if first and last else size - 1
    return (begin, end) if begin <= end else None
