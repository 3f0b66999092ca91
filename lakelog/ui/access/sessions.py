"""Sessions in signed cookies, and the tokens that protect forms.

    cookie      <id>.<end, in seconds since 1970>.<0 or 1: logged in>.<signature>
    form token  the signature of the whole cookie, under another label

The server stores no sessions, so requests without a session cost no memory. The key of the signatures is chosen when
the server starts. So a restart ends all sessions. A session ends after twelve hours, or when its user logs out. After a
logout, the server remembers the id of the session until the twelve hours have passed. Several threads may use the
sessions at the same time.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass

SESSION_SECONDS = 12 * 3600
_SIGNATURE_CHARACTERS = 64


@dataclass(frozen=True)
class Session:
    """A session.

    cookie: the value of the cookie.
    is_logged_in: whether the user has entered the token of the server.
    """

    cookie: str
    is_logged_in: bool


class Sessions:
    """Makes and checks sessions."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        """
        Args:
            now_ms: returns the current time, in milliseconds since 1970.
        """
        self._key = secrets.token_bytes(32)
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._ended: dict[str, int] = {}

    def begin(self, *, is_logged_in: bool) -> Session:
        """A new session."""
        end = self._now_ms() // 1000 + SESSION_SECONDS
        unsigned = f"{secrets.token_urlsafe(18)}.{end}.{int(is_logged_in)}"
        return Session(f"{unsigned}.{self._signature('cookie', unsigned)}", is_logged_in)

    def find(self, cookie: str) -> Session | None:
        """The session of a cookie; None if the cookie is forged, too old, or its user has logged out."""
        unsigned, _, signature = cookie.rpartition(".")
        if not _equal(signature, self._signature("cookie", unsigned)):
            return None
        name, end, is_logged_in = unsigned.split(".")
        if int(end) <= self._now_ms() // 1000 or name in self._ended:
            return None
        return Session(cookie, is_logged_in == "1")

    def end(self, session: Session) -> None:
        """End a session: its cookie is refused from now on."""
        name, end, *_ = session.cookie.split(".")
        now = self._now_ms() // 1000
        with self._lock:
            self._ended = {each: until for each, until in self._ended.items() if until > now} | {name: int(end)}

    def form_token(self, session: Session) -> str:
        """The token that each form of this session contains."""
        return self._signature("form", session.cookie)

    def is_form_token(self, session: Session, token: str) -> bool:
        """Whether a form with this token was made for the session."""
        return _equal(token, self.form_token(session))

    def _signature(self, label: str, text: str) -> str:
        return hmac.new(self._key, f"{label}\0{text}".encode(errors="replace"), hashlib.sha256).hexdigest()


def _equal(given: str, expected: str) -> bool:
    """Compare two signatures in constant time."""
    return len(given) == _SIGNATURE_CHARACTERS and hmac.compare_digest(
        given.encode(errors="replace"), expected.encode()
    )


def same_token(given: str, expected: str) -> bool:
    """Compare two tokens. The time of the comparison shows neither their content nor their length."""
    digests = (hashlib.sha256(each.encode(errors="replace")).digest() for each in (given, expected))
    return hmac.compare_digest(*digests)
