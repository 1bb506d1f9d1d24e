"""Certificates and kubeconfigs of a throw-away cluster, made by openssl."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

DAYS = "365"


@dataclass(frozen=True)
class Pki:
    """One certificate authority and what it signed. `folder`: where all files go."""

    folder: Path
    server: str
    """URL of the API server."""

    def create(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._openssl(
            "req", "-x509", *_NEW_KEY, "-keyout", "ca.key", "-out", "ca.crt", "-days", DAYS,
            "-subj", "/CN=ropeteam-lab",
        )  # fmt: skip
        self._openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "sa.key")
        self._openssl("ec", "-in", "sa.key", "-pubout", "-out", "sa.pub")

    def issue(self, name: str, subject: str, *alternatives: str) -> None:
        """`name`.crt and `name`.key. `subject`: as openssl writes it; `alternatives`: like `IP:10.0.0.1`."""
        self._openssl("req", *_NEW_KEY, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", subject)
        extensions = "extendedKeyUsage=serverAuth,clientAuth\n"
        if alternatives:
            extensions += f"subjectAltName={','.join(alternatives)}\n"
        (self.folder / f"{name}.ext").write_text(extensions)
        self._openssl(
            "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-days", DAYS,
            "-CAcreateserial", "-out", f"{name}.crt", "-extfile", f"{name}.ext",
        )  # fmt: skip

    def kubeconfig(self, name: str, subject: str, *alternatives: str) -> Path:
        """A file that lets its holder speak as `subject`. JSON is YAML."""
        if not (self.folder / f"{name}.crt").exists():
            self.issue(name, subject, *alternatives)
        credentials = {
            "client-certificate": str(self.folder / f"{name}.crt"),
            "client-key": str(self.folder / f"{name}.key"),
        }
        cluster = {"server": self.server, "certificate-authority": str(self.folder / "ca.crt")}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "lab", "cluster": cluster}],
            "users": [{"name": name, "user": credentials}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": name}}],
            "current-context": "lab",
        }
        path = self.folder / f"{name}.kubeconfig"
        path.write_text(json.dumps(document, indent=1))
        return path

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.folder, check=True, capture_output=True)


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
