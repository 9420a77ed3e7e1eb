"""Credentials for each request to the API server.

A token may be fixed in the kubeconfig, come from a file that is read again after its rotation (service accounts), or
come from an exec plugin, which runs again when its token expires or is rejected. A plugin may also provide a client
certificate. Client certificates and the certificate authority belong to a connection: if they are files, new
connections use the current content of the files, and open connections continue.
"""

import asyncio
import os
import ssl
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from baton.errors import UnavailableError
from baton.kube.kubeconfig import Access, KubeconfigError
from baton.model import times

_FILE_TTL_S = 60.0
"""How long a token read from a file is used: kubelet rotates it long before it expires."""

_LOOK_S = 5.0
"""How often certificate files are checked for changes."""
_EXPIRY_MARGIN_S = 30.0
_EXEC_TIMEOUT_S = 60.0

_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class _ExecStatus(msgspec.Struct):
    token: str | None = None
    client_certificate: str | None = msgspec.field(name="clientCertificateData", default=None)
    client_key: str | None = msgspec.field(name="clientKeyData", default=None)
    expiration_timestamp: str | None = msgspec.field(name="expirationTimestamp", default=None)


class _ExecCredential(msgspec.Struct):
    status: _ExecStatus = msgspec.field(default_factory=_ExecStatus)


class Credentials:
    """Provides the Authorization header for the next request. After a 401, `refused()` discards the credentials, once
    for all requests that used them."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._headers = _bearer(access.token)
        self.pair: tuple[bytes, bytes] | None = None
        """The client certificate and key from a plugin."""
        self._good_until = 0.0
        self._asking = asyncio.Lock()

    async def headers(self) -> dict[str, str]:
        if self._access.token_file is not None or self._access.exec_command:
            async with self._asking:
                if time.monotonic() >= self._good_until:
                    await self._renew()
        return self._headers

    def refused(self, headers: Mapping[str, str]) -> bool:
        """Discard the credentials of a request, unless that is already done; True if there may be better ones."""
        if headers is self._headers:
            self._good_until = 0.0
        return self._access.token_file is not None or bool(self._access.exec_command)

    async def _renew(self) -> None:
        if self._access.token_file is not None:
            try:
                self._headers = _bearer(self._access.token_file.read_text().strip())
            except OSError as error:
                raise UnavailableError(f"the token file {self._access.token_file}: {error.strerror}") from None
            self._good_until = time.monotonic() + _FILE_TTL_S
            return
        status = await _ask_plugin(self._access)
        self._headers = _bearer(status.token)
        if status.client_certificate and status.client_key:
            self.pair = status.client_certificate.encode(), status.client_key.encode()
        elif not status.token:
            raise KubeconfigError(
                f"the credential plugin {self._access.exec_command[0]} returned neither a token"
                " nor a client certificate with its key; log in with your provider and try again"
            )
        self._good_until = float("inf")
        if status.expiration_timestamp:
            left_s = _expires_s(status.expiration_timestamp, self._access.exec_command[0]) - time.time()
            self._good_until = time.monotonic() + max(1.0, left_s - _EXPIRY_MARGIN_S)


class Tls:
    """Provides the TLS context for the next connection; after a change it is a new object."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._made_of: tuple[bytes | None, ...] | None = None
        self._context: ssl.SSLContext | None = None
        self._pair: tuple[bytes, bytes] | None = None
        self._look_at = 0.0

    def context(self, pair: tuple[bytes, bytes] | None) -> ssl.SSLContext | None:
        """The context, with the plugin's client certificate and key if any; None for a plain http server."""
        if self._made_of is None or pair != self._pair or time.monotonic() >= self._look_at:
            self._pair = pair
            self._look()
        return self._context

    def refused(self) -> bool:
        """Check the files now; return whether they have changed."""
        before = self._context
        self._look()
        return self._context is not before

    def _look(self) -> None:
        """Load the files. Unusable files are usually half of a change, so the previous content stays in use until
        then."""
        self._look_at = time.monotonic() + _LOOK_S
        try:
            access = self._access.read_again()
            if self._pair is not None:
                certificate, key = self._pair
                access = msgspec.structs.replace(access, client_certificate=certificate, client_key=key)
            made_of = (access.ca_data, access.client_certificate, access.client_key)
            if made_of != self._made_of:
                self._context, self._made_of = access.ssl_context(), made_of
        except KubeconfigError as error:
            if self._made_of is None:
                raise
            import structlog  # imported here, because it would slow down the start of every command

            structlog.get_logger("baton.kube").warning("the changed certificates cannot be used yet", error=str(error))


def _bearer(token: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


def _expires_s(text: str, plugin: str) -> float:
    expires_s = times.seconds(text)
    if expires_s is None:
        raise KubeconfigError(
            f"the credential plugin {plugin} returned expirationTimestamp {text!r}, expected a time such as"
            " 2030-01-31T12:00:00Z"
        )
    return expires_s


async def _ask_plugin(access: Access) -> _ExecStatus:
    """Run the kubeconfig's exec plugin and read the ExecCredential it prints."""
    command = access.exec_command
    info = {
        "apiVersion": access.exec_api_version,
        "kind": "ExecCredential",
        "spec": {"interactive": False, **({"cluster": access.exec_cluster} if access.exec_cluster else {})},
    }
    environment = {
        **os.environ,
        **dict(access.exec_environment),
        "KUBERNETES_EXEC_INFO": msgspec.json.encode(info).decode(),
    }
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
        )
    except OSError as error:
        hint = f"; {access.exec_install_hint}" if access.exec_install_hint else ""
        raise UnavailableError(f"the credential plugin {command[0]} cannot be run: {error.strerror}{hint}") from None
    try:
        async with asyncio.timeout(_EXEC_TIMEOUT_S):
            answer, complaint = await process.communicate()
    except TimeoutError:
        raise UnavailableError(
            f"the credential plugin {command[0]} did not answer in {_EXEC_TIMEOUT_S:.0f} s"
        ) from None
    finally:
        # Do not wait for its output: processes that it started may keep its pipes open.
        if process.returncode is None:
            process.kill()
    if process.returncode != 0:
        last = complaint.decode(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
        raise UnavailableError(f"the credential plugin {command[0]} ended with {process.returncode}: {last[0]}")
    try:
        return msgspec.json.decode(answer, type=_ExecCredential).status
    except msgspec.DecodeError as error:
        raise KubeconfigError(f"the credential plugin {command[0]} printed no ExecCredential: {error}") from None


def in_cluster(folder: Path = _SERVICE_ACCOUNT) -> Access | None:
    """Access to the API server from inside a pod; None outside of a pod."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not port or not (folder / "token").is_file():
        return None
    address = f"[{host}]" if ":" in host else host
    return Access(
        context="in-cluster",
        server=f"https://{address}:{port}",
        namespace=(folder / "namespace").read_text().strip() if (folder / "namespace").is_file() else "default",
        ca_data=(folder / "ca.crt").read_bytes(),
        ca_file=folder / "ca.crt",
        token_file=folder / "token",
    )
