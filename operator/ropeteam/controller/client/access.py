"""Address of the API server, and our credentials.

A kubeconfig with a token or a client certificate is read here in a few lines; all other kinds of users (exec
plugins, OIDC) and the service account of a pod are left to `kubernetes.aio.config`, whose import takes a
second.
Limits: `proxy-url` and `tls-server-name` are not read.
"""

from __future__ import annotations

import base64
import os
import ssl
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ropeteam.errors import CannotRun

_PLAIN_USER = {"token", "tokenFile"} | {
    f"client-{part}{form}" for part in ("certificate", "key") for form in ("", "-data")
}
"""Fields of a kubeconfig's user that are read here; a user with any other is left to the Kubernetes
client."""


class AccessError(CannotRun, ConnectionError):
    """The API server cannot be accessed. The text names what to change."""


@dataclass(frozen=True)
class Access:
    """Address and credentials."""

    server: str
    """URL without a slash at the end."""
    tls: ssl.SSLContext | None
    """None: plain HTTP."""
    token: Callable[[], Awaitable[str]]
    """Called before each request, since tokens are renewed. "": no token."""

    async def headers(self) -> dict[str, str]:
        """The headers that authenticate a request. Raises OSError for a token file that cannot be read."""
        token = await self.token()
        return {"Authorization": f"Bearer {token}"} if token else {}


async def load(kubeconfig: Path | None) -> Access:
    """Read the access in `kubeconfig`; None: that of the service account of this pod. Raises AccessError."""
    if kubeconfig is None:
        return await _load_by_kubernetes_client(None)
    try:
        cluster, user = _current_context(kubeconfig)
    except (OSError, yaml.YAMLError, LookupError, TypeError, ValueError, OverflowError) as error:
        raise AccessError(f"cannot read the kubeconfig {kubeconfig}: {_reason(error)}") from None
    if not set(user) <= _PLAIN_USER:
        return await _load_by_kubernetes_client(kubeconfig)
    try:
        folder = kubeconfig.parent
        return Access(
            cluster["server"].rstrip("/"), _tls_context(cluster, user, folder), _token_source(user, folder)
        )
    except (OSError, LookupError, ValueError) as error:
        raise AccessError(f"the kubeconfig {kubeconfig} is not usable: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    """The text of an error; the text of a KeyError alone is only the name of the missing field."""
    return f"this file has no field {error}" if isinstance(error, KeyError) else str(error)


def _current_context(kubeconfig: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Cluster and user of the current context; a context without a user has an empty one. Raises OSError,
    YAMLError, and for a file of another form LookupError, TypeError, ValueError."""
    config = yaml.safe_load(kubeconfig.read_text())
    context = _named_entry(config, "context", config["current-context"])
    user = _named_entry(config, "user", context["user"]) if context.get("user") else {}
    return _named_entry(config, "cluster", context["cluster"]), user or {}


def _named_entry(config: Mapping[str, Any], kind: str, name: str) -> dict[str, Any]:
    """The entry of this name in a list of a kubeconfig. `kind`: context, user or cluster. Raises
    LookupError."""
    found = next((item[kind] for item in config[f"{kind}s"] if item["name"] == name), None)
    if not isinstance(found, dict):
        raise LookupError(f"this file has no {kind} named {name!r}")
    return found


def _token_source(user: Mapping[str, Any], folder: Path) -> Callable[[], Awaitable[str]]:
    """A function that returns the user's token, "" if there is none. A token file, relative to `folder`, is
    read in each call, because it is replaced when the token is renewed."""

    async def token() -> str:
        if "tokenFile" in user:
            return str((folder / user["tokenFile"]).read_text().strip())
        return str(user.get("token", ""))

    return token


def _tls_context(cluster: Mapping[str, Any], user: Mapping[str, Any], folder: Path) -> ssl.SSLContext | None:
    """Trust in the server, and the user's client certificate if there is one. None: the server speaks plain
    HTTP. Raises OSError (also for a certificate that is invalid), ValueError, LookupError."""
    if not cluster["server"].startswith("https"):
        return None
    authority = _read_field(cluster, "certificate-authority", folder)
    context = ssl.create_default_context(cadata=authority.decode() if authority else None)
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    certificate = _read_field(user, "client-certificate", folder)
    key = _read_field(user, "client-key", folder)
    if certificate and key:
        with tempfile.NamedTemporaryFile() as file:  # ssl loads certificates from files only
            file.write(certificate + b"\n" + key)
            file.flush()
            context.load_cert_chain(file.name)
    return context


def _read_field(entry: Mapping[str, Any], name: str, folder: Path) -> bytes:
    """The content of a field that a kubeconfig has either inline, as `<name>-data`, or as the name of a file,
    relative to `folder`. b"": it has neither. Raises OSError, ValueError."""
    if f"{name}-data" in entry:
        return base64.b64decode(entry[f"{name}-data"])
    return (folder / entry[name]).read_bytes() if name in entry else b""


async def _load_by_kubernetes_client(kubeconfig: Path | None) -> Access:
    """As `load`, by the Kubernetes client, for all kinds of users. Raises AccessError."""
    from kubernetes.aio import config  # here, because it takes a second
    from kubernetes.aio.client import Configuration

    known = Configuration()
    try:
        if kubeconfig is None:
            config.load_incluster_config(  # type: ignore[no-untyped-call]
                client_configuration=known
            )
        else:
            await config.load_kube_config(  # type: ignore[no-untyped-call]
                config_file=os.fspath(kubeconfig), client_configuration=known
            )
    except config.ConfigException as error:
        where = kubeconfig or "no --kubeconfig was given, and this is not a pod of a cluster"
        raise AccessError(f"no access to the API server ({where}): {error}") from None

    async def token() -> str:
        value = await known.get_api_key_with_prefix("BearerToken") or ""
        return str(value).removeprefix("Bearer ").removeprefix("bearer ").strip()

    context = None
    if known.host.startswith("https"):
        context = ssl.create_default_context(cafile=known.ssl_ca_cert)
        if not known.verify_ssl:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if known.cert_file:
            context.load_cert_chain(known.cert_file, known.key_file)
    return Access(known.host.rstrip("/"), context, token)
