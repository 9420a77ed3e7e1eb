"""The agent as it runs on a node: the core with the companions that the configuration asks for."""

from pathlib import Path

from baton.agent.config import AgentConfig
from baton.agent.daemon import Agent, Companion
from baton.agent.gpuwatch import OpenSource
from baton.agent.status import StatusServer
from baton.agent.telemetry import Telemetry


def assemble(config: AgentConfig, node: str, open_source: OpenSource, config_path: Path | None = None) -> Agent:
    """An agent that is ready to run."""
    settings = config.for_node(node)
    companions: list[Companion] = [StatusServer(Telemetry())] if settings.serving.status_socket else []
    return Agent(config, node, open_source, config_path=config_path, companions=companions)
