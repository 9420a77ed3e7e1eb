"""What Prometheus reads from the lock daemon after real work on a simulated GPU."""

import socket
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from baton.gpu import simulated
from baton.local.daemon import OwnDaemon
from tests.local.conftest import PATIENCE_S, Machine

pytestmark = pytest.mark.process


@pytest.fixture
def scrape_url(machine: Machine) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = simulated.environment(machine.folder / "machine")
    daemon = OwnDaemon(machine.folder / "run" / "lock", environment, ["--metrics-port", str(port)])
    daemon.start()
    yield f"http://127.0.0.1:{port}"
    daemon.stop()


def samples(url: str) -> dict[tuple[str, str], float]:
    """Every sample by its name and its tenant or GPU."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    return {
        (sample.name, sample.labels.get("tenant") or sample.labels.get("gpu", "")): sample.value
        for family in families
        for sample in family.samples
    }


def test_the_metrics_show_what_was_received_and_agree_with_the_status(machine: Machine, scrape_url: str) -> None:
    work = machine.trainer("--gpu-seconds", "12", "--cpu-seconds", "0")
    runs = [machine.start("run", "-q", "--gpus", "1", "--tenant", name, "--", *work) for name in ("ann", "ben", "cid")]
    for run in runs:
        _, errors = run.communicate(timeout=PATIENCE_S)
        assert run.returncode == 0, errors
    found = samples(scrape_url)
    status = machine.control.status()
    for tenant in status.tenants:
        received = found["baton_lock_tenant_received_seconds_total", tenant.tenant]
        assert received == pytest.approx(tenant.account.received_s)
        assert received >= 3 * 12 / 60
        assert found["baton_lock_tenant_grants_total", tenant.tenant] == tenant.account.grants >= 1
    for gpu in status.gpus:
        assert found["baton_lock_gpu_scheduling", gpu.gpu] == 1
        assert found["baton_lock_gpu_holders", gpu.gpu] == 0
    grants = sum(tenant.account.grants for tenant in status.tenants)
    waits = sum(value for (name, _), value in found.items() if name == "baton_lock_wait_seconds_count")
    assert waits == grants


def test_the_health_check_answers(scrape_url: str) -> None:
    with urllib.request.urlopen(f"{scrape_url}/healthz") as answer:
        assert answer.status == 200
