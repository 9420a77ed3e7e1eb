"""The certificate authority and the serving certificate of the webhooks, and when each is renewed.

Pure: the time is an argument, and a `Keyring` becomes the next one. The serving certificate is renewed under the same
authority, without any effect on clients. An authority near its end gets a successor, which is published for a while
before it signs anything; the old one stays trusted until it expires. So API servers and replicas that lag behind each
other always trust the certificate that they are shown. A certificate from a replica whose clock ran far ahead is not
valid yet, and is replaced.
"""

import datetime
import ipaddress
from collections.abc import Sequence

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_BACKDATED = datetime.timedelta(minutes=5)
"""Clocks differ: a clock that is behind refuses a certificate that became valid just now."""
_RENEW_AT = 1 / 3
"""The share of its lifetime that is left when a certificate is replaced."""


class Lifetimes(msgspec.Struct, frozen=True, kw_only=True):
    """The lifetimes of certificates."""

    authority: datetime.timedelta = datetime.timedelta(days=3650)
    serving: datetime.timedelta = datetime.timedelta(days=90)
    overlap: datetime.timedelta = datetime.timedelta(hours=1)
    """How long a new authority is published before it signs: longer than any API server needs to learn of it."""


class Pair(msgspec.Struct, frozen=True):
    """A certificate and its key, in PEM."""

    certificate: str
    key: str

    def parsed(self) -> x509.Certificate:
        return x509.load_pem_x509_certificate(self.certificate.encode())


class Keyring(msgspec.Struct, frozen=True):
    """The content of the Secret."""

    authority: Pair
    serving: Pair
    successor: Pair | None = None
    trusted: tuple[str, ...] = ()
    """Certificates of earlier authorities that have not expired."""

    def bundle(self) -> str:
        """The authorities that API servers are configured to trust."""
        authorities = [*self.trusted, self.authority.certificate]
        if self.successor is not None:
            authorities.append(self.successor.certificate)
        return "".join(authorities)

    @property
    def expires(self) -> datetime.datetime:
        """When the serving certificate expires."""
        return self.serving.parsed().not_valid_after_utc


def next_keyring(
    keyring: Keyring | None, hosts: Sequence[str], now: datetime.datetime, lifetimes: Lifetimes
) -> Keyring:
    """The keyring to use from now on; the same one when nothing is due."""
    if keyring is None or not _valid(keyring.authority.parsed(), now):
        authority = make_authority(now, lifetimes)
        return Keyring(authority, make_serving(authority, hosts, now, lifetimes))
    authority, successor = keyring.authority, keyring.successor
    trusted = tuple(each for each in keyring.trusted if Pair(each, "").parsed().not_valid_after_utc > now)
    if successor is not None and not _valid(successor.parsed(), now):
        successor = None
    if successor is None and _due(authority.parsed(), now):
        successor = make_authority(now, lifetimes)
    elif successor is not None and now >= _issued(successor.parsed()) + lifetimes.overlap:
        trusted = (*trusted, authority.certificate)
        authority, successor = successor, None
    serving = keyring.serving
    if _due(serving.parsed(), now) or not _serves(serving, authority, hosts):
        serving = make_serving(authority, hosts, now, lifetimes)
    return Keyring(authority, serving, successor, trusted)


def make_authority(now: datetime.datetime, lifetimes: Lifetimes) -> Pair:
    """A new certificate authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "baton-admission")])
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        _builder(name, name, key, now, lifetimes.authority)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _pair(certificate, key)


def make_serving(authority: Pair, hosts: Sequence[str], now: datetime.datetime, lifetimes: Lifetimes) -> Pair:
    """A serving certificate for these hosts."""
    issuer = authority.parsed()
    issuer_key = serialization.load_pem_private_key(authority.key.encode(), None)
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
    lasts = min(lifetimes.serving, issuer.not_valid_after_utc - now)
    certificate = (
        _builder(name, issuer.subject, key, now, lasts)
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
            critical=False,
        )
        .sign(issuer_key, hashes.SHA256())
    )
    return _pair(certificate, key)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now: datetime.datetime,
    lasts: datetime.timedelta,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + lasts)
    )


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Pair(certificate.public_bytes(serialization.Encoding.PEM).decode(), private.decode())


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _issued(certificate: x509.Certificate) -> datetime.datetime:
    return certificate.not_valid_before_utc + _BACKDATED


def _valid(certificate: x509.Certificate, now: datetime.datetime) -> bool:
    """Whether its validity has begun and not ended. A certificate made by a clock that ran ahead has not begun."""
    return certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc


def _due(certificate: x509.Certificate, now: datetime.datetime) -> bool:
    """Whether it is invalid, or at most a third of its lifetime is left."""
    end = certificate.not_valid_after_utc
    return not _valid(certificate, now) or now >= end - (end - _issued(certificate)) * _RENEW_AT


def _serves(serving: Pair, authority: Pair, hosts: Sequence[str]) -> bool:
    """Whether a serving certificate is signed by this authority and names all hosts."""
    certificate = serving.parsed()
    try:
        certificate.verify_directly_issued_by(authority.parsed())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        return False
    return {_host(host) for host in hosts} <= set(names)
