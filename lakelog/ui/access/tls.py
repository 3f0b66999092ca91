"""The certificate and the key of a server with TLS, and the checks of both files before the port is opened."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from storage_engine.errors import NotFoundError, StorageAccessError, UsageError

_OTHERS_MAY_READ = 0o044
_NOT_A_PAIR = {"KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED"}
"""What OpenSSL reports if a key does not belong to a certificate. The last two mean that the kinds of key differ."""


@dataclass(frozen=True)
class TlsFiles:
    """The files of a server with TLS, in PEM format.

    certificate: the certificate of the server, and then the certificates that have signed it.
    key: the private key, without a password.
    """

    certificate: Path
    key: Path


def tls_files(
    certificate: Path | None, key: Path | None, warn: Callable[[str], None] = lambda _: None
) -> TlsFiles | None:
    """The files of a server with TLS, after a check; None if neither file is given.

    Args:
        warn: called if other users of the host can read the key.

    Raises:
        UsageError: only one file is given, a file has the wrong contents, or the key does not belong to the certificate.
        NotFoundError: a file does not exist.
        StorageAccessError: a file cannot be read.
    """
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        given, missing = (
            ("--tls-key", "--tls-certificate") if certificate is None else ("--tls-certificate", "--tls-key")
        )
        raise UsageError(given, f"is given without {missing}", "Give both options, or none.")
    found = TlsFiles(certificate.expanduser(), key.expanduser())
    certificate_place, key_place = f"--tls-certificate {certificate}", f"--tls-key {key}"
    _check_readable(found.certificate, certificate_place)
    _check_readable(found.key, key_place)
    _check_certificate(found.certificate, certificate_place)
    _check_key(found, certificate_place, key_place)
    if found.key.stat().st_mode & _OTHERS_MAY_READ:
        warn(f"{key_place}: other users of this host can read the key. Run: chmod 600 {key}")
    return found


def _check_readable(file: Path, place: str) -> None:
    try:
        with file.open("rb") as opened:
            opened.read(1)
    except OSError as error:
        kind = NotFoundError if isinstance(error, FileNotFoundError) else StorageAccessError
        problem = f"cannot be read: {error.strerror or error}"
        raise kind(place, problem, "Give a file that the user of this command can read.") from error


def _check_certificate(file: Path, place: str) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=file)
    except ssl.SSLError:
        remedy = "The file must have a line -----BEGIN CERTIFICATE-----."
        raise UsageError(place, "found no certificate in PEM format", remedy) from None


def _check_key(files: TlsFiles, certificate_place: str, key_place: str) -> None:
    """Load both files as the server does. Errors of OpenSSL have no contents of the files."""
    asked = list[bool]()

    def password() -> str:  # without this function, OpenSSL would ask on the terminal
        asked.append(True)
        return ""

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(files.certificate, files.key, password)
    except ssl.SSLError as error:
        if error.reason in _NOT_A_PAIR:
            problem = f"does not belong to the first certificate of {files.certificate}"
            raise UsageError(key_place, problem, "Give the key of this certificate.") from None
        if asked:
            remedy = f"Decrypt the key: openssl pkey -in {files.key} -out NEWFILE"
            raise UsageError(key_place, "is encrypted with a password", remedy) from None
        if error.reason:
            problem = f"cannot be used: {error.reason.replace('_', ' ').lower()}"
            raise UsageError(certificate_place, problem, "Give another certificate.") from None
        remedy = "The file must have a line -----BEGIN PRIVATE KEY-----."
        raise UsageError(key_place, "found no private key in PEM format", remedy) from None
