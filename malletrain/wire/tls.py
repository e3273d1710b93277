"""The certificates that clients trust when the daemon's URL is https: the system's, or those of the site's own CA."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping

from malletrain.wire.errors import WireError

#: Names a file of certificates (PEM) to trust instead of the system's; `mtbatch` hands it on to pilots.
CA_VARIABLE = "MALLETRAIN_CA"


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


def with_ca(environ: Mapping[str, str], ca: str) -> dict[str, str]:
    """The environment with MALLETRAIN_CA naming `ca`, unless it names a file already."""
    return {CA_VARIABLE: ca, **environ} if ca else dict(environ)
