"""Certificates in virtual time: always valid and always trusted, even if clients and replicas lag behind."""

import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from baton.admission.certificates.authority import Keyring, Lifetimes, Pair, next_keyring
from baton.admission.certificates.keeper import read_keyring, write_keyring

START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
LIFETIMES = Lifetimes(
    authority=datetime.timedelta(days=30),
    serving=datetime.timedelta(days=9),
    overlap=datetime.timedelta(hours=1),
)
HOSTS = ("baton-admission.baton-system.svc", "127.0.0.1")


def issued_by(serving: Pair, bundle: str) -> bool:
    """Whether a client that trusts the bundle accepts the certificate."""
    for authority in x509.load_pem_x509_certificates(bundle.encode()):
        try:
            serving.parsed().verify_directly_issued_by(authority)
        except Exception:  # every failed verification counts
            continue
        return True
    return False


def test_the_first_keyring_is_complete() -> None:
    keyring = next_keyring(None, HOSTS, START, LIFETIMES)
    assert issued_by(keyring.serving, keyring.bundle())
    names = keyring.serving.parsed().extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [HOSTS[0]]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == [HOSTS[1]]


def test_nothing_changes_while_nothing_is_due() -> None:
    keyring = next_keyring(None, HOSTS, START, LIFETIMES)
    assert next_keyring(keyring, HOSTS, START + datetime.timedelta(days=5), LIFETIMES) == keyring


def test_a_new_name_needs_a_new_certificate_but_no_new_authority() -> None:
    keyring = next_keyring(None, HOSTS, START, LIFETIMES)
    renamed = next_keyring(keyring, (*HOSTS, "other"), START, LIFETIMES)
    assert renamed.serving != keyring.serving
    assert renamed.authority == keyring.authority


def test_for_half_a_year_every_client_trusts_every_replica_although_both_lag() -> None:
    """A client with the bundle of half an hour ago and a replica with the certificate of that time always agree."""
    late = datetime.timedelta(minutes=30)
    history: list[tuple[datetime.datetime, Keyring]] = []
    keyring: Keyring | None = None
    now = START
    renewals, authorities = 0, set()
    while now < START + datetime.timedelta(days=180):
        before = keyring
        keyring = next_keyring(keyring, HOSTS, now, LIFETIMES)
        renewals += before is not None and before.serving != keyring.serving
        authorities.add(keyring.authority.certificate)
        history = [(at, each) for at, each in history if at >= now - late] + [(now, keyring)]
        assert keyring.expires > now + late, "the certificate in use is about to end"
        if before != keyring:
            for _, shown in history:
                for _, known in history:
                    assert issued_by(shown.serving, known.bundle())
        now += datetime.timedelta(minutes=30)
    assert renewals > 20
    assert len(authorities) > 5
    assert keyring is not None
    assert len(x509.load_pem_x509_certificates(keyring.bundle().encode())) <= 3, "old authorities are forgotten"


def test_an_expired_authority_is_replaced_at_once() -> None:
    keyring = next_keyring(None, HOSTS, START, LIFETIMES)
    late = next_keyring(keyring, HOSTS, START + datetime.timedelta(days=31), LIFETIMES)
    assert late.authority != keyring.authority
    assert issued_by(late.serving, late.bundle())


@pytest.mark.parametrize(
    "ahead", [datetime.timedelta(hours=2), datetime.timedelta(days=7), datetime.timedelta(days=31)]
)
def test_certificates_from_a_clock_that_ran_ahead_are_replaced(ahead: datetime.timedelta) -> None:
    """No API server would trust them before that time, and none would be due for renewal until long after it."""
    for before in (None, next_keyring(None, HOSTS, START, LIFETIMES)):
        spoilt = next_keyring(before, HOSTS, START + ahead, LIFETIMES)
        mended = next_keyring(spoilt, HOSTS, START, LIFETIMES)
        assert valid(mended.serving, START)
        assert any(valid(Pair(each, ""), START) and issued_by(mended.serving, each) for each in authorities(mended))
        assert next_keyring(mended, HOSTS, START, LIFETIMES) == mended


def test_replicas_whose_clocks_differ_by_minutes_agree() -> None:
    ahead = next_keyring(None, HOSTS, START + datetime.timedelta(minutes=4), LIFETIMES)
    assert next_keyring(ahead, HOSTS, START, LIFETIMES) == ahead


def valid(pair: Pair, now: datetime.datetime) -> bool:
    return pair.parsed().not_valid_before_utc <= now < pair.parsed().not_valid_after_utc


def authorities(keyring: Keyring) -> list[str]:
    parsed = x509.load_pem_x509_certificates(keyring.bundle().encode())
    return [each.public_bytes(serialization.Encoding.PEM).decode() for each in parsed]


def test_the_secret_contains_the_whole_keyring_and_an_invalid_one_is_replaced() -> None:
    keyring = next_keyring(None, HOSTS, START, LIFETIMES)
    data = write_keyring(keyring)
    assert set(data) == {"tls.crt", "tls.key", "ca.crt", "keyring.json"}
    assert read_keyring(data) == keyring
    assert read_keyring({}) is None
    assert read_keyring({**data, "keyring.json": data["tls.crt"]}) is None
