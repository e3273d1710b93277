"""Whose certificate a client trusts when the daemon's URL is https.

The system's authorities, or the site's own (`ca`). Or none: then the daemon vouches for its certificate by MUNGE,
which every node of a cluster has already (`tls_user`), and a self-signed certificate is as good as any. The client
asks on the very connection, before it sends anything else, for a credential that names the daemon's URL and this
certificate; the local munged says which user made it. Whoever sits between has another certificate, and cannot make
that credential.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import pwd
import ssl
from collections.abc import Mapping

from malletrain.wire import munge
from malletrain.wire.errors import WireError

#: Names a file of certificates (PEM) to trust instead of the system's; `mtbatch` hands it on to pilots.
CA_VARIABLE = "MALLETRAIN_CA"

#: Names the user that the daemon runs as, or its number, who vouches for the certificate; `mtbatch` hands it on too.
USER_VARIABLE = "MALLETRAIN_TLS_USER"

#: What the daemon's credential for its certificate is made for (`malletrain.wire.munge.statement`).
CERTIFICATE_PURPOSE = "malletrain-certificate-v1"

#: Where the daemon gives one to whoever asks.
CERTIFICATE_PATH = "/v1/certificate"

MAX_ANSWER_BYTES = 16 * 1024


class NotVouched(OSError):
    """The certificate of what answers at the daemon's address is vouched for by no authority and no user."""


def certificate_statement(url: str, certificate: bytes) -> bytes:
    """The payload of a credential that vouches for a certificate (DER) of the daemon at `url`."""
    return munge.statement(CERTIFICATE_PURPOSE, f"{url.rstrip('/')} sha256:{hashlib.sha256(certificate).hexdigest()}")


def client_context(ca: str = "") -> ssl.SSLContext:
    """A context that checks the daemon's certificate and host name.

    Args:
        ca: a PEM file with the only certificates to trust; empty: what MALLETRAIN_CA names, else the system's.

    Raises:
        WireError: the file cannot be read, or holds no certificate.
    """
    path = ca or os.environ.get(CA_VARIABLE, "")
    try:
        return ssl.create_default_context(cafile=path or None)
    except (OSError, ssl.SSLError) as error:
        raise WireError(f"{path}: no file of certificates (client.toml: ca, or {CA_VARIABLE}): {error}") from error


class TlsConnector:
    """Makes connections to one daemon whose certificate is checked. Safe to use from several threads.

    Args:
        url: the daemon's.
        ca: as in `client_context`.
        user: name or number of the user who must vouch for the certificate; empty: whom MALLETRAIN_TLS_USER names.
            Where none is named, authorities must; where both are, both.
        munge_socket: munged's, where it is not the system's.

    Raises:
        WireError: the file of certificates cannot be used, or there is no such user.
    """

    def __init__(self, url: str, ca: str = "", user: str = "", munge_socket: str | None = None) -> None:
        self._url, self._munge_socket = url, munge_socket
        user = user or os.environ.get(USER_VARIABLE, "")
        self._uid = uid_of(user) if user else None
        if user and not (ca or os.environ.get(CA_VARIABLE)):
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            self._context.check_hostname, self._context.verify_mode = False, ssl.CERT_NONE
            self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        else:
            self._context = client_context(ca)
        self._vouched: set[bytes] = set()

    def connect(self, host: str, port: int | None, base: str, timeout_s: float) -> http.client.HTTPSConnection:
        """A connection that is open and whose other end is proven.

        Args:
            host, port: where to.
            base: the path of the daemon's URL.
            timeout_s: for each step of connecting.

        Raises:
            NotVouched: the user does not vouch for the certificate, or cannot be asked.
            OSError, http.client.HTTPException: no connection.
        """
        connection = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=self._context)
        connection.connect()
        if self._uid is not None:
            try:
                self._check(connection, base, self._uid)
            except BaseException:
                connection.close()
                raise
        return connection

    def _check(self, connection: http.client.HTTPSConnection, base: str, uid: int) -> None:
        certificate = connection.sock.getpeercert(binary_form=True) or b""
        if certificate in self._vouched:
            return
        connection.request("GET", base + CERTIFICATE_PATH, headers={"Accept": "application/json"})
        answer = connection.getresponse()
        text = answer.read(MAX_ANSWER_BYTES)
        if answer.status in (http.client.TOO_MANY_REQUESTS, http.client.SERVICE_UNAVAILABLE):
            raise NotVouched("the daemon cannot vouch for its certificate now: try again")
        if answer.status != http.client.OK:
            raise NotVouched(
                f"the daemon does not vouch for its certificate (status {answer.status}): set api.certificate in "
                "malletrain.toml, or leave tls_user out"
            )
        try:
            credential = munge.decode(str(json.loads(text)["credential"]), self._munge_socket)
        except (ValueError, KeyError, TypeError, munge.MungeError) as error:
            raise NotVouched(f"what should vouch for the daemon's certificate does not: {error}") from error
        if credential.uid != uid:
            raise NotVouched(f"uid {credential.uid} vouches for the daemon's certificate, not uid {uid} (tls_user)")
        if credential.payload != certificate_statement(self._url, certificate):
            raise NotVouched(
                "the daemon vouches for another certificate or URL: somebody listens in between, api.url is not the "
                "url of client.toml, or api.certificate is not the certificate in use"
            )
        self._vouched.add(certificate)


def uid_of(user: str) -> int:
    """The number of a user given by name or number.

    Raises:
        WireError: there is no such user here.
    """
    if user.isdecimal():
        return int(user)
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError as error:
        raise WireError(f"tls_user: there is no user {user!r} here: give the daemon's uid as a number") from error


def with_trust(environ: Mapping[str, str], ca: str, user: str) -> dict[str, str]:
    """The environment with MALLETRAIN_CA and MALLETRAIN_TLS_USER as a client file gives them, unless it has them. The
    user as a number: compute nodes may not know the name.

    Raises:
        WireError: there is no such user here.
    """
    given = {CA_VARIABLE: ca, USER_VARIABLE: str(uid_of(user)) if user else ""}
    return {**{name: value for name, value in given.items() if value}, **environ}
