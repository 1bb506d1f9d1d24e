"""Every way to prove who we are that a kubeconfig can name; the certificates are real."""

from __future__ import annotations

import base64
import json
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from ropeteam.controller.client.access import AccessError, load


def kubeconfig(folder: Path, cluster: dict[str, Any], user: dict[str, Any]) -> Path:
    config = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
    }
    file = folder / "kubeconfig"
    file.write_text(yaml.safe_dump(config))
    return file


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `cert.pem` and `key.pem`."""
    folder = tmp_path_factory.mktemp("tls")
    openssl = shutil.which("openssl")
    assert openssl, "these tests need openssl"
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
         "-subj", "/CN=test", "-keyout", "key.pem", "-out", "cert.pem"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    return folder


async def test_a_token_in_the_kubeconfig_is_sent_as_bearer(tmp_path: Path) -> None:
    access = await load(kubeconfig(tmp_path, {"server": "http://127.0.0.1:1/"}, {"token": "secret"}))
    assert (access.server, access.tls) == ("http://127.0.0.1:1", None)
    assert await access.headers() == {"Authorization": "Bearer secret"}


async def test_a_token_file_is_read_again_each_time(tmp_path: Path) -> None:
    access = await load(kubeconfig(tmp_path, {"server": "http://x"}, {"tokenFile": "token"}))
    for token in ("first", "second"):
        (tmp_path / "token").write_text(token + "\n")
        assert await access.headers() == {"Authorization": f"Bearer {token}"}


async def test_a_kubeconfig_without_a_user_is_anonymous(tmp_path: Path) -> None:
    assert await (await load(kubeconfig(tmp_path, {"server": "http://x"}, {}))).headers() == {}


async def test_certificates_inline_and_as_files(tmp_path: Path, certificate: Path) -> None:
    cert, key = certificate / "cert.pem", certificate / "key.pem"
    inline = base64.b64encode(cert.read_bytes()).decode()
    cluster = {"server": "https://x", "certificate-authority-data": inline}
    user = {"client-certificate": str(cert), "client-key-data": base64.b64encode(key.read_bytes()).decode()}
    access = await load(kubeconfig(tmp_path, cluster, user))
    assert access.tls is not None
    assert access.tls.verify_mode is ssl.CERT_REQUIRED
    assert [each["subject"] for each in access.tls.get_ca_certs()] == [((("commonName", "test"),),)]


async def test_a_server_that_need_not_prove_itself(tmp_path: Path) -> None:
    cluster = {"server": "https://x", "insecure-skip-tls-verify": True}
    access = await load(kubeconfig(tmp_path, cluster, {"token": "t"}))
    assert access.tls is not None
    assert access.tls.verify_mode is ssl.CERT_NONE


async def test_a_certificate_that_is_none_is_reported(tmp_path: Path) -> None:
    cluster = {"server": "https://x", "certificate-authority": "nowhere.pem"}
    with pytest.raises(AccessError, match=r"is not usable.*nowhere\.pem"):
        await load(kubeconfig(tmp_path, cluster, {}))


async def test_a_plugin_gives_the_token(tmp_path: Path) -> None:
    version = "client.authentication.k8s.io/v1"
    answer = {"apiVersion": version, "kind": "ExecCredential", "status": {"token": "fresh"}}
    plugin = {
        "apiVersion": version,
        "command": "echo",
        "args": [json.dumps(answer)],
        "interactiveMode": "Never",
    }
    access = await load(kubeconfig(tmp_path, {"server": "https://x"}, {"exec": plugin}))
    assert access.tls is not None
    assert await access.headers() == {"Authorization": "Bearer fresh"}


async def test_outside_of_a_cluster_a_kubeconfig_is_needed() -> None:
    with pytest.raises(AccessError, match="no --kubeconfig was given"):
        await load(None)
