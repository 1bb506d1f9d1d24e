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


class AccessError(CannotRun, ConnectionError):
    """The API server cannot be accessed. The text names what to change."""


@dataclass(frozen=True)
class Access:
    """Address and credentials. `token` is called before each request, since tokens are renewed."""

    server: str
    tls: ssl.SSLContext | None
    token: Callable[[], Awaitable[str]]

    async def headers(self) -> dict[str, str]:
        token = await self.token()
        return {"Authorization": f"Bearer {token}"} if token else {}


async def load(kubeconfig: Path | None) -> Access:
    """The access in `kubeconfig`; None: that of the service account of this pod. Raises AccessError."""
    if kubeconfig is None:
        return await _through_kubernetes_client(None)
    try:
        cluster, user, folder = _current(kubeconfig)
    except (OSError, yaml.YAMLError, LookupError, TypeError, ValueError, OverflowError) as error:
        raise AccessError(f"cannot read the kubeconfig {kubeconfig}: {error}") from None
    if not set(user) <= _PLAIN_USER:
        return await _through_kubernetes_client(kubeconfig)
    try:
        return Access(cluster["server"].rstrip("/"), _tls(cluster, user, folder), _token_of(user, folder))
    except (OSError, LookupError, ValueError) as error:
        raise AccessError(f"the kubeconfig {kubeconfig} is not usable: {error}") from None


def _current(kubeconfig: Path) -> tuple[dict[str, Any], dict[str, Any], Path]:
    config = yaml.safe_load(kubeconfig.read_text())
    context = _entry(config, "context", config["current-context"])
    user = _entry(config, "user", context["user"]) if context.get("user") else {}
    return _entry(config, "cluster", context["cluster"]), user or {}, kubeconfig.parent


def _entry(config: Mapping[str, Any], kind: str, name: str) -> dict[str, Any]:
    found = next((item[kind] for item in config[f"{kind}s"] if item["name"] == name), None)
    if not isinstance(found, dict):
        raise LookupError(f"it has no {kind} named {name!r}")
    return found


def _token_of(user: Mapping[str, Any], folder: Path) -> Callable[[], Awaitable[str]]:
    async def token() -> str:
        if "tokenFile" in user:
            return str((folder / user["tokenFile"]).read_text().strip())
        return str(user.get("token", ""))

    return token


def _tls(cluster: Mapping[str, Any], user: Mapping[str, Any], folder: Path) -> ssl.SSLContext | None:
    if not cluster["server"].startswith("https"):
        return None
    authority = _bytes(cluster, "certificate-authority", folder)
    context = ssl.create_default_context(cadata=authority.decode() if authority else None)
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    certificate, key = _bytes(user, "client-certificate", folder), _bytes(user, "client-key", folder)
    if certificate and key:
        with tempfile.NamedTemporaryFile() as file:  # ssl loads certificates from files only
            file.write(certificate + b"\n" + key)
            file.flush()
            context.load_cert_chain(file.name)
    return context


def _bytes(entry: Mapping[str, Any], name: str, folder: Path) -> bytes:
    if f"{name}-data" in entry:
        return base64.b64decode(entry[f"{name}-data"])
    return (folder / entry[name]).read_bytes() if name in entry else b""


async def _through_kubernetes_client(kubeconfig: Path | None) -> Access:
    from kubernetes.aio import config
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
