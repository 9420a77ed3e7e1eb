"""The agent as it runs on a node: the core with the companions that the configuration enables."""

from pathlib import Path

import structlog

from baton.agent.cluster.cluster import ClusterSide
from baton.agent.config import AgentConfig
from baton.agent.daemon import Agent, Companion
from baton.agent.node.lock_keeper import LockKeeper
from baton.agent.node.lock_port import LockClient
from baton.agent.status import StatusServer
from baton.errors import BatonError
from baton.gpu import vendors
from baton.kube.client import Client

_log = structlog.get_logger("baton.agent")


def assemble(config: AgentConfig, node: str, config_path: Path | None = None) -> Agent:
    """An agent that is ready to run."""
    settings = config.for_node(node)
    companions: list[Companion] = [StatusServer()] if settings.serving.status_socket else []
    companions.append(LockKeeper(start=settings.lock.supervise))
    if settings.api.enabled and (client := _client()) is not None:
        companions.append(ClusterSide(client))
    agent = Agent(config, node, vendors.VENDORS, config_path=config_path, companions=companions)
    lock = settings.lock
    agent.lock = LockClient(Path(lock.socket_directory), lambda: agent.gpus.samples, lock.load_limit_s)
    return agent


def _client() -> Client | None:
    """A client of the API server; a node without one still shares its GPUs."""
    try:
        return Client.from_environment(qps=10, burst=20, timeout_s=10.0, user_agent="baton-agent")
    except BatonError as error:
        _log.warning("no API server: labels, condition, events and the scheduler's choice are off", reason=str(error))
        return None
