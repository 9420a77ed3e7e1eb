"""Keeps the certificates: in a Secret for all replicas, in the live TLS context, and in the webhook configurations.

Every replica does the same, without a leader. It reads the Secret, computes the next keyring and, if that differs,
tries to write it; if two replicas write at once, one wins and the other reads again. Then it loads the Secret into the
TLS context for new connections, and makes the webhook configurations trust it.
"""

import asyncio
import base64
import datetime
import random
import ssl
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import structlog

from baton.admission.certificates.authority import Keyring, Lifetimes, Pair, next_keyring
from baton.errors import BatonError
from baton.kube.client import JSON_PATCH, Client
from baton.kube.errors import ConflictError, NotFoundError
from baton.model.meta import Metadata
from baton.model.resource import Resource

_LOG = structlog.get_logger("baton.admission")

CONFIGURATION = "baton-admission"
"""The name of both webhook configurations."""
SECRET = "baton-admission-tls"  # noqa: S105  # a name, not a secret
_ATTEMPTS = 5


class Secret(msgspec.Struct, frozen=True):
    """v1 Secret: its data is base64."""

    metadata: Metadata
    data: dict[str, str] = {}


class _ClientConfig(msgspec.Struct, frozen=True, rename="camel"):
    ca_bundle: str = ""


class _Webhook(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    client_config: _ClientConfig


class _Configuration(msgspec.Struct, frozen=True):
    metadata: Metadata
    webhooks: tuple[_Webhook, ...] = ()


SECRETS: Resource[Secret] = Resource("", "v1", "secrets", Secret)
CONFIGURATIONS: tuple[Resource[_Configuration], ...] = tuple(
    Resource("admissionregistration.k8s.io", "v1", plural, _Configuration, namespaced=False)
    for plural in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
)


def utc_now() -> datetime.datetime:
    """The time."""
    return datetime.datetime.now(datetime.UTC)


class Keeper:
    """The certificates of one replica. `context` serves new connections with the certificate that was loaded last."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        hosts: Sequence[str],
        *,
        lifetimes: Lifetimes | None = None,
        every_s: float = 30.0,
        configuration: str = CONFIGURATION,
        secret: str = SECRET,
        now: Callable[[], datetime.datetime] = utc_now,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._hosts = tuple(hosts)
        self._lifetimes = lifetimes or Lifetimes()
        self._every_s = every_s
        self._configuration = configuration
        self._secret = secret
        self._now = now
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.keyring: Keyring | None = None
        self.trusted = False
        """Whether the webhook configurations, when last read, trusted the served certificate."""

    async def run(self) -> None:
        """Check the certificates regularly until cancelled. A failure is retried the next time."""
        while True:
            await asyncio.sleep(self._every_s * random.uniform(0.8, 1.2))
            try:
                await self.look()
            except (BatonError, OSError) as error:
                _LOG.warning("certificates not checked", error=str(error))

    async def look(self) -> None:
        """Renew certificates that are due, serve them, and have them trusted."""
        keyring = await self._settle()
        if keyring != self.keyring:
            # Trust comes first: a certificate that is not trusted yet must not be served.
            await self._publish(keyring)
            self._load(keyring)
            _LOG.info("serving certificate loaded", expires=keyring.expires.isoformat())
        else:
            await self._publish(keyring)

    async def _settle(self) -> Keyring:
        """The keyring that all replicas agree on, renewed where that is due."""
        for _ in range(_ATTEMPTS):
            try:
                secret: Secret | None = await self._client.get(SECRETS, self._secret, self._namespace)
            except NotFoundError:
                secret = None
            stored = read_keyring(secret.data) if secret is not None else None
            wanted = next_keyring(stored, self._hosts, self._now(), self._lifetimes)
            if wanted == stored:
                return wanted
            try:
                await self._write(secret, wanted)
            except ConflictError:
                continue
            return wanted
        raise BatonError(
            f"the Secret {self._namespace}/{self._secret} was changed by other clients {_ATTEMPTS} times in a row"
        )

    async def _write(self, secret: Secret | None, keyring: Keyring) -> None:
        body: dict[str, Any] = {
            "metadata": {"name": self._secret, "labels": {"app.kubernetes.io/part-of": "baton"}},
            "type": "kubernetes.io/tls",
            "data": write_keyring(keyring),
        }
        if secret is None:
            await self._client.create(SECRETS, body, self._namespace)
            return
        body["metadata"]["resourceVersion"] = secret.metadata.resource_version
        await self._client.replace(SECRETS, self._secret, body, self._namespace)

    def _load(self, keyring: Keyring) -> None:
        # The ssl module loads key pairs from files only; the private directory lives for the call.
        with tempfile.TemporaryDirectory() as folder:
            certificate, key = Path(folder, "crt"), Path(folder, "key")
            certificate.write_text(keyring.serving.certificate)
            key.touch(mode=0o600)
            key.write_text(keyring.serving.key)
            self.context.load_cert_chain(certificate, key)
        self.keyring = keyring

    async def _publish(self, keyring: Keyring) -> None:
        """Write the authorities into both webhook configurations where they are missing."""
        bundle = base64.b64encode(keyring.bundle().encode()).decode()
        trusted = True
        for resource in CONFIGURATIONS:
            try:
                found = await self._client.get(resource, self._configuration)
                operations = [
                    operation
                    for place, webhook in enumerate(found.webhooks)
                    if webhook.client_config.ca_bundle != bundle
                    for operation in (
                        {"op": "test", "path": f"/webhooks/{place}/name", "value": webhook.name},
                        {"op": "add", "path": f"/webhooks/{place}/clientConfig/caBundle", "value": bundle},
                    )
                ]
                if operations:
                    await self._client.patch(
                        resource,
                        self._configuration,
                        operations,
                        content_type=JSON_PATCH,
                        field_manager="baton-admission",
                    )
                    _LOG.info(
                        "webhook configurations trust the authority",
                        kind=resource.plural,
                        webhooks=len(operations) // 2,
                    )
            except NotFoundError:
                trusted = False
                _LOG.warning(
                    "no webhook configuration; install it with `baton install`",
                    kind=resource.plural,
                    name=self._configuration,
                )
        self.trusted = trusted


def write_keyring(keyring: Keyring) -> dict[str, str]:
    """The data of the Secret: the three usual keys, and those that only this program reads."""
    plain = {
        "tls.crt": keyring.serving.certificate,
        "tls.key": keyring.serving.key,
        "ca.crt": keyring.bundle(),
        "keyring.json": msgspec.json.encode(keyring).decode(),
    }
    return {name: base64.b64encode(text.encode()).decode() for name, text in plain.items()}


def read_keyring(data: dict[str, str]) -> Keyring | None:
    """The keyring in a Secret. None when it is invalid; a new one then replaces it."""
    try:
        keyring = msgspec.json.decode(base64.b64decode(data.get("keyring.json", "")), type=Keyring)
        for pair in (keyring.authority, keyring.serving, *((keyring.successor,) if keyring.successor else ())):
            pair.parsed()
        for certificate in keyring.trusted:
            Pair(certificate, "").parsed()
    except ValueError:
        return None
    return keyring
