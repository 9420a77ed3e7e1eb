"""Kubeconfig files: the API server and the credentials for it.

Follows kubectl's rules for finding the file (`$KUBECONFIG`, a list whose first file that names a thing wins;
else `~/.kube/config`), for relative paths (relative to the file that holds them) and for proxies.
"""

import base64
import os
import ssl
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import yaml

from baton.errors import BatonError
from baton.kube.proxies import proxy_of

_PLUGIN_EXTENSION = "client.authentication.k8s.io/exec"


class KubeconfigError(BatonError):
    """The kubeconfig cannot be used; the sentence names the file and the field."""


class Access(msgspec.Struct, frozen=True):
    """Access to one API server: the content of a kubeconfig context."""

    context: str
    server: str
    namespace: str = "default"
    ca_data: bytes | None = None
    insecure_skip_tls_verify: bool = False
    tls_server_name: str | None = None
    proxy_url: str | None = None
    client_certificate: bytes | None = None
    client_key: bytes | None = None
    token: str | None = None
    token_file: Path | None = None
    exec_command: tuple[str, ...] = ()
    exec_api_version: str = "client.authentication.k8s.io/v1"
    exec_environment: tuple[tuple[str, str], ...] = ()
    exec_cluster: dict[str, Any] | None = None
    """The cluster information for the plugin, if the kubeconfig asks for it (`provideClusterInfo`)."""
    exec_install_hint: str = ""
    impersonation: tuple[tuple[str, str], ...] = ()
    """Headers for impersonation."""
    ca_file: Path | None = None
    client_certificate_file: Path | None = None
    client_key_file: Path | None = None
    """The files of the three, if they are files; their content may change while a program runs."""

    def read_again(self) -> "Access":
        """The same access with the current content of its files."""
        return msgspec.structs.replace(
            self,
            ca_data=_read_file(self.ca_file, "certificate-authority") if self.ca_file else self.ca_data,
            client_certificate=_read_file(self.client_certificate_file, "client-certificate")
            if self.client_certificate_file
            else self.client_certificate,
            client_key=_read_file(self.client_key_file, "client-key") if self.client_key_file else self.client_key,
        )

    def ssl_context(self) -> ssl.SSLContext | None:
        """TLS as this access asks for it; None for a plain http server."""
        if not self.server.startswith("https:"):
            return None
        try:
            context = ssl.create_default_context(cadata=self.ca_data.decode() if self.ca_data else None)
        except (ssl.SSLError, UnicodeDecodeError) as error:
            raise KubeconfigError(
                f"context {self.context}: its certificate authority is no certificate: {error}"
            ) from None
        if self.insecure_skip_tls_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.client_certificate and self.client_key:
            # The ssl module loads key pairs from files only; the private directory lives for the call.
            with tempfile.TemporaryDirectory() as folder:
                certificate, key = Path(folder, "crt"), Path(folder, "key")
                certificate.write_bytes(self.client_certificate)
                key.touch(mode=0o600)
                key.write_bytes(self.client_key)
                try:
                    context.load_cert_chain(certificate, key)
                except ssl.SSLError as error:
                    raise KubeconfigError(
                        f"context {self.context}: its client certificate and key cannot be used: {error}"
                    ) from None
        return context


def default_paths() -> list[Path]:
    """The files kubectl would read, in order; they need not exist."""
    listed = os.environ.get("KUBECONFIG")
    if listed:
        return [Path(part) for part in listed.split(os.pathsep) if part]
    # Unchanged for a user without a home directory, as in a container; then there is no such file.
    return [Path(os.path.expanduser("~/.kube/config"))]


def load(paths: list[Path] | None = None, context: str | None = None) -> Access:
    """Read the kubeconfig and choose one context (the current one unless named)."""
    files = [path for path in (paths or default_paths()) if path.is_file()]
    if not files:
        raise KubeconfigError(
            f"no kubeconfig at {', '.join(map(str, paths or default_paths()))}; set KUBECONFIG or copy one there"
        )
    merged = _Merged([(path, _read(path)) for path in files])
    name = context or merged.current_context()
    spec = merged.find("contexts", "context", name)[1]
    home, cluster = merged.find("clusters", "cluster", _text(spec, "cluster", f"context {name}"))
    user_home, user = merged.find("users", "user", spec["user"]) if spec.get("user") else (home, {})
    exec_section = user.get("exec") or {}
    ca_data = _blob(home, cluster, "certificate-authority")
    return Access(
        context=name,
        server=_text(cluster, "server", f"cluster {spec['cluster']}").rstrip("/"),
        namespace=spec.get("namespace") or "default",
        ca_data=ca_data,
        insecure_skip_tls_verify=bool(cluster.get("insecure-skip-tls-verify")),
        tls_server_name=cluster.get("tls-server-name"),
        proxy_url=_proxy(cluster, spec["cluster"]),
        client_certificate=_blob(user_home, user, "client-certificate"),
        client_key=_blob(user_home, user, "client-key"),
        token=str(user["token"]) if user.get("token") else None,
        token_file=user_home / str(user["tokenFile"]) if user.get("tokenFile") and not user.get("token") else None,
        exec_command=(_plugin(user_home, exec_section), *map(str, exec_section.get("args") or []))
        if exec_section
        else (),
        exec_api_version=exec_section.get("apiVersion") or "client.authentication.k8s.io/v1",
        exec_environment=tuple(
            (_text(item, "name", "exec.env"), str(item.get("value") or ""))
            for item in _mappings(exec_section.get("env"), "kubeconfig exec.env")
        ),
        exec_cluster=_cluster_info(cluster, ca_data) if exec_section.get("provideClusterInfo") else None,
        exec_install_hint=" ".join(str(exec_section.get("installHint") or "").split()),
        impersonation=_impersonation(user, str(spec.get("user"))),
        ca_file=_file(home, cluster, "certificate-authority"),
        client_certificate_file=_file(user_home, user, "client-certificate"),
        client_key_file=_file(user_home, user, "client-key"),
    )


class _Merged:
    """Several kubeconfig files seen as one: the first file that names a thing wins."""

    def __init__(self, files: list[tuple[Path, dict[str, Any]]]) -> None:
        self.files = files

    def current_context(self) -> str:
        for _, content in self.files:
            if content.get("current-context"):
                return str(content["current-context"])
        paths = ", ".join(str(path) for path, _ in self.files)
        raise KubeconfigError(f"{paths}: current-context is not set; run `kubectl config use-context NAME`")

    def find(self, section: str, body: str, name: str) -> tuple[Path, dict[str, Any]]:
        known: list[str] = []
        for path, content in self.files:
            for item in _mappings(content.get(section), f"{path}: {section}"):
                if item.get("name") == name:
                    return path.parent, item.get(body) or {}
                known.append(str(item.get("name")))
        paths = ", ".join(str(path) for path, _ in self.files)
        raise KubeconfigError(f"{paths}: {section} has no {name!r}; it has {', '.join(known) or 'nothing'}")


def _read(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise KubeconfigError(f"{path}: cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise KubeconfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if content is None:  # kubectl leaves an empty file after everything in it was deleted
        return {}
    if not isinstance(content, dict):
        raise KubeconfigError(f"{path}: expected a mapping with clusters, contexts and users")
    return content


def _mappings(value: Any, where: str) -> list[dict[str, Any]]:
    """A list of mappings, or nothing."""
    found = value or []
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise KubeconfigError(
            f"{where} must be a list of mappings, each with a name"
        )  # do not show the value: it may contain secrets
    return found


def _text(section: dict[str, Any], field: str, where: str) -> str:
    value = section.get(field)
    if not isinstance(value, str) or not value:
        raise KubeconfigError(f"kubeconfig {where}: {field} must be a non-empty string, got {value!r}")
    return value


def _proxy(cluster: dict[str, Any], name: str) -> str | None:
    url, where = cluster.get("proxy-url"), f"kubeconfig cluster {name}: proxy-url"
    if not url:
        url, where = proxy_of(cluster["server"]), "the proxy that HTTPS_PROXY or HTTP_PROXY names"
    if not url:
        return None
    if not str(url).startswith(("http://", "https://")):
        raise KubeconfigError(f"{where} must begin with http:// or https://, got {url!r}")
    return str(url)


def _blob(home: Path, section: dict[str, Any], field: str) -> bytes | None:
    """A certificate or key: inline base64 in `FIELD-data`, or the file named by `FIELD`."""
    if data := section.get(f"{field}-data"):
        try:
            return base64.b64decode(str(data), validate=True)
        except ValueError:
            raise KubeconfigError(f"kubeconfig: {field}-data is not valid base64") from None
    path = _file(home, section, field)
    return _read_file(path, field) if path is not None else None


def _file(home: Path, section: dict[str, Any], field: str) -> Path | None:
    """The file named by `FIELD`, unless inline data takes precedence."""
    return home / str(section[field]) if section.get(field) and not section.get(f"{field}-data") else None


def _read_file(path: Path, field: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise KubeconfigError(f"kubeconfig: {field} {path} cannot be read: {error.strerror}") from None


def _cluster_info(cluster: dict[str, Any], ca_data: bytes | None) -> dict[str, Any]:
    """`spec.cluster` of an ExecCredential: the kubeconfig's cluster with its files read and its plugin settings."""
    told: dict[str, Any] = {
        name: cluster[name]
        for name in ("server", "tls-server-name", "insecure-skip-tls-verify", "proxy-url")
        if cluster.get(name)
    }
    if ca_data is not None:
        told["certificate-authority-data"] = base64.b64encode(ca_data).decode()
    for item in cluster.get("extensions") or []:
        if item.get("name") == _PLUGIN_EXTENSION:
            told["config"] = item.get("extension")
    return told


def _impersonation(user: dict[str, Any], name: str) -> tuple[tuple[str, str], ...]:
    """`as`, `as-uid`, `as-groups` and `as-user-extra`. Without them, a request would have the rights of the real user,
    who may do more."""
    headers = [("Impersonate-Uid", str(user["as-uid"]))] if user.get("as-uid") else []
    headers += [("Impersonate-Group", str(group)) for group in user.get("as-groups") or []]
    for key, values in (user.get("as-user-extra") or {}).items():
        headers += [(f"Impersonate-Extra-{quote(str(key), safe='')}", str(value)) for value in values]
    if not headers and not user.get("as"):
        return ()
    return (("Impersonate-User", _text(user, "as", f"user {name}")), *headers)


def _plugin(home: Path, section: dict[str, Any]) -> str:
    """An exec plugin's program: a bare name is looked up on PATH, a path is relative to the kubeconfig."""
    command = _text(section, "command", "exec")
    return command if "/" not in command else str(home / command)
