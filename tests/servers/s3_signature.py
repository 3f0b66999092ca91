"""Signs a request to an S3 server again, after a proxy has removed headers that the signature covers.

The rules are those of AWS Signature Version 4. The signature covers the method, the path, the query, the headers that
the header Authorization lists, and the hash of the body in the header x-amz-content-sha256.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import replace

from tests.servers.http_messages import Request


def signed_again(request: Request, secret_key: str) -> Request:
    """The request with a signature of its headers that are left. It had a signature with this key."""
    authorization = request.header("authorization")
    found = re.search(r"Credential=[^/]*/([^,]*), *SignedHeaders=([^,]*), *Signature=", authorization or "")
    body_hash = request.header("x-amz-content-sha256")
    assert found, f"no signature to replace: {authorization}"
    assert body_hash, "the signature does not cover the body"
    assert not body_hash.startswith("STREAMING-AWS4"), "each chunk of the body has a signature of its own"
    scope, names = found[1], [name for name in found[2].split(";") if request.header(name) is not None]
    path, _, query = request.path.partition("?")
    parameters = sorted(each if "=" in each else f"{each}=" for each in query.split("&") if each)
    canonical = "\n".join(
        [
            request.method,
            path,
            "&".join(parameters),
            *(f"{name}:{' '.join((request.header(name) or '').split())}" for name in names),
            "",
            ";".join(names),
            body_hash,
        ]
    )
    to_sign = "\n".join(
        ["AWS4-HMAC-SHA256", request.header("x-amz-date") or "", scope, hashlib.sha256(canonical.encode()).hexdigest()]
    )
    key = f"AWS4{secret_key}".encode()
    for part in scope.split("/"):
        key = _hmac(key, part)
    signature = _hmac(key, to_sign).hex()
    credential = (authorization or "")[: found.start(2)]
    signed = f"{credential}{';'.join(names)}, Signature={signature}"
    return replace(request, headers=[*request.without("authorization").headers, ("authorization", signed)])


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode(), "sha256")
