"""Who may read the page: this machine's own browser, or one that has the token."""

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from typing import NamedTuple
from urllib.parse import urlsplit

from shoal.errors import ShoalError

HERE = ("localhost", "127.0.0.1", "::1")
"""The names by which a browser on this machine, or behind a tunnel to it, calls it."""
SHORTEST = 8
"""Characters of a token, at least."""
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; media-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
"""What every answer tells the browser: nothing from elsewhere, no code but the page's own files."""


class Guard(NamedTuple):
    """The address that is served, and the token it needs."""

    host: str
    port: int
    token: str | None

    @property
    def cookie(self) -> str:
        """The cookie's name, one for each port."""
        return f"shoal_{self.port}"

    @property
    def pass_value(self) -> str:
        """What the cookie holds instead of the token."""
        return hashlib.sha256(f"shoal {self.token}".encode()).hexdigest()

    def refusal(self, headers: Mapping[str, str], path: str) -> str | None:
        """Why a request is refused; None where it is not."""
        host = headers.get("Host", "")
        if self.token is None and _name_in(host) not in (*HERE, self.host):
            return f"this page is for this machine's own browser; open http://localhost:{self.port}"
        origin = headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return "another site may not read this page"
        navigates = headers.get("Sec-Fetch-Mode") == "navigate" and path == "/"
        if headers.get("Sec-Fetch-Site") in ("cross-site", "same-site") and not navigates:
            return "another site may not read this page"
        if self.token is not None and not self._has_pass(headers):
            return "this page needs its token: open the address that shoal watch printed"
        return None

    def is_token(self, given: str) -> bool:
        """Whether this is the token."""
        return self.token is not None and hmac.compare_digest(given.encode(), self.token.encode())

    def _has_pass(self, headers: Mapping[str, str]) -> bool:
        try:
            found = SimpleCookie(headers.get("Cookie", "")).get(self.cookie)
        except CookieError:
            return False
        return found is not None and hmac.compare_digest(found.value.encode(), self.pass_value.encode())


def make_guard(host: str, port: int, token: str | None) -> Guard:
    """The guard of an address; one that others can reach needs a token."""
    if token is None and not _is_here(host):
        raise ShoalError(
            f"--host {host} lets other machines read these runs, so it needs --token, "
            f"such as --token {secrets.token_urlsafe(12)}"
        )
    if token is not None and len(token) < SHORTEST:
        raise ShoalError(f"--token {token} is short; give at least {SHORTEST} characters")
    return Guard(host, port, token)


def _is_here(host: str) -> bool:
    """Whether only this machine can reach an address.

    >>> _is_here("127.0.0.1"), _is_here("localhost"), _is_here("0.0.0.0"), _is_here("lab.example")
    (True, True, False, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _name_in(host: str) -> str:
    """The name in a Host header, without its port.

    >>> _name_in("localhost:8080"), _name_in("[::1]:8080"), _name_in("evil.example")
    ('localhost', '::1', 'evil.example')
    """
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
