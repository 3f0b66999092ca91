"""The faults that a proxy can cause for one request, and the rules that choose the requests.

A fault is a function that gets a client's request, and gets a server that can execute this request. The fault returns
the reply for the client; None closes the connection without a reply.

    fault                   executed    the client sees
    DropRequest             no          a closed connection
    DropReply               yes         a closed connection
    Hold                    later       a closed connection; the request arrives after the client has given up
    RepeatLater             twice       the first reply; the second execution follows when the test says so
    Repeat                  twice       the second reply
    CutRequest              in part     a closed connection
    CutReply                yes         a reply that ends early
    Answer                  no          a status, for example 503
    AnswerAfterwards        yes         a status that denies the execution
    Delay                   yes         the reply, late; the execution is late, too
    DelayReply              yes         the reply, late
    IgnoreConditions        yes         the reply to a put without If-None-Match and If-Match: two creators both win
    ListByFolders           yes         a listing that is not in the order of the names
"""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from tests.servers.http_messages import Reply, Request

CODES = {
    403: "AccessDenied",
    409: "ConditionalRequestConflict",
    412: "PreconditionFailed",
    429: "TooManyRequests",
    500: "InternalError",
    503: "SlowDown",
}
"""The code of S3's error document, by the status of the reply."""


class Upstream(Protocol):
    """The server behind a proxy."""

    def execute(self, request: Request) -> Reply: ...

    def execute_part(self, request: Request, size: int) -> None: ...

    def hold(self, request: Request) -> None:
        """Keep the request until the test releases it."""

    def signed_again(self, request: Request) -> Request: ...


class Fault(Protocol):
    def __call__(self, request: Request, upstream: Upstream) -> Reply | None: ...


@dataclass(frozen=True)
class DropRequest:
    def __call__(self, request: Request, upstream: Upstream) -> Reply | None:
        return None


@dataclass(frozen=True)
class DropReply:
    def __call__(self, request: Request, upstream: Upstream) -> Reply | None:
        upstream.execute(request)
        return None


@dataclass(frozen=True)
class Hold:
    def __call__(self, request: Request, upstream: Upstream) -> Reply | None:
        upstream.hold(request)
        return None


@dataclass(frozen=True)
class RepeatLater:
    def __call__(self, request: Request, upstream: Upstream) -> Reply | None:
        reply = upstream.execute(request)
        upstream.hold(request)
        return reply


@dataclass(frozen=True)
class Repeat:
    def __call__(self, request: Request, upstream: Upstream) -> Reply | None:
        upstream.execute(request)
        return upstream.execute(request)


@dataclass(frozen=True)
class CutRequest:
    """share: of the body's bytes that the server receives."""

    share: float = 0.5

    def __call__(self, request: Request, upstream: Upstream) -> Reply | None:
        upstream.execute_part(request, int(len(request.body) * self.share))
        return None


@dataclass(frozen=True)
class CutReply:
    """share: of the body's bytes that the client receives."""

    share: float = 0.5

    def __call__(self, request: Request, upstream: Upstream) -> Reply | None:
        reply = upstream.execute(request)
        return replace(reply, cut_after=int(len(reply.body) * self.share))


@dataclass(frozen=True)
class Answer:
    """code: of the error document; by default the code that S3 has for the status."""

    status: int
    code: str = ""

    def __call__(self, request: Request, upstream: Upstream) -> Reply | None:
        code = self.code or CODES[self.status]
        body = f"<Error><Code>{code}</Code><Message>by a faulty proxy</Message></Error>".encode()
        return Reply(self.status, [("Content-Type", "application/xml")], body)


@dataclass(frozen=True)
class RefuseDeletion:
    """Answer a deletion as S3 does if it could not delete an object: with status 200 and the error code of the object."""

    code: str

    def __call__(self, request: Request, upstream: Upstream) -> Reply | None:
        key = request.body.partition(b"<Key>")[2].partition(b"</Key>")[0].decode()
        error = f"<Error><Key>{key}</Key><Code>{self.code}</Code><Message>by a faulty proxy</Message></Error>"
        return Reply(200, [("Content-Type", "application/xml")], f"<DeleteResult>{error}</DeleteResult>".encode())


@dataclass(frozen=True)
class AnswerAfterwards:
    status: int

    def __call__(self, request: Request, upstream: Upstream) -> Reply | None:
        upstream.execute(request)
        return Answer(self.status)(request, upstream)


@dataclass(frozen=True)
class Delay:
    seconds: float

    def __call__(self, request: Request, upstream: Upstream) -> Reply | None:
        time.sleep(self.seconds)
        return upstream.execute(request)


@dataclass(frozen=True)
class DelayReply:
    seconds: float

    def __call__(self, request: Request, upstream: Upstream) -> Reply | None:
        reply = upstream.execute(request)
        time.sleep(self.seconds)
        return reply


@dataclass(frozen=True)
class IgnoreConditions:
    """headers: of the conditions that are ignored."""

    headers: tuple[str, ...] = ("if-none-match", "if-match")

    def __call__(self, request: Request, upstream: Upstream) -> Reply | None:
        return upstream.execute(upstream.signed_again(request.without(*self.headers)))


@dataclass(frozen=True)
class ListByFolders:
    """A listing has the files of each folder before those of the next folder, as in Azure accounts with a hierarchical
    namespace: `a/x` before `a-b/x`.
    """

    def __call__(self, request: Request, upstream: Upstream) -> Reply | None:
        reply = upstream.execute(request)
        files = re.findall(rb"<Contents>.*?</Contents>", reply.body)
        if not files:
            return reply
        ordered = sorted(files, key=lambda file: file.partition(b"<Key>")[2].partition(b"</Key>")[0].split(b"/"))
        begin = reply.body.index(files[0])
        end = begin + sum(map(len, files))
        return replace(reply, body=reply.body[:begin] + b"".join(ordered) + reply.body[end:])


@dataclass(frozen=True)
class IgnoreStartAfter:
    """A listing then begins with the first name of the folder."""

    def __call__(self, request: Request, upstream: Upstream) -> Reply | None:
        path = re.sub(r"start-after=[^&]*&?", "", request.path).removesuffix("&")
        return upstream.execute(upstream.signed_again(replace(request, path=path)))


Plan = Callable[[Request], Fault | None]
"""Chooses the fault of a request. A proxy asks its plan about one request at a time."""


@dataclass
class Rule:
    """A fault for some requests.

    method: None for all methods.
    part: the path with the query contains this text.
    conditional: if True, only requests with If-None-Match or If-Match.
    skip: so many matching requests pass first.
    times: so many matching requests then meet the fault; None for all that follow.
    """

    fault: Fault
    method: str | None = None
    part: str = ""
    conditional: bool = False
    skip: int = 0
    times: int | None = None
    seen: int = field(default=0, init=False)

    def __call__(self, request: Request) -> Fault | None:
        if self.method not in (None, request.method) or self.part not in request.path:
            return None
        if self.conditional and request.header("if-none-match") is None and request.header("if-match") is None:
            return None
        number = self.seen
        self.seen += 1
        if number < self.skip or (self.times is not None and number >= self.skip + self.times):
            return None
        return self.fault


@dataclass
class RandomPlan:
    """A random fault for a share of the requests.

    The choice depends on the seed, the method, the path, and how many such requests came before. So a plan with the
    same seed does the same to a request, in whatever order the requests of several threads arrive.
    """

    seed: int
    share: float
    faults: Sequence[Fault]
    seen: Counter[tuple[str, str]] = field(default_factory=Counter, init=False, repr=False)

    def __call__(self, request: Request) -> Fault | None:
        place = request.method, request.path
        chance = random.Random(f"{self.seed} {place} {self.seen[place]}")
        self.seen[place] += 1
        return chance.choice(self.faults) if chance.random() < self.share else None
