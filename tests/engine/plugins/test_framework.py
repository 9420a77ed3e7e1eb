"""Plugins are written against one module of the engine."""

import tomllib
from pathlib import Path

import baton.engine
from baton.engine import framework

ROOT = Path(__file__).parents[3]
CONTRACT = "A plugin imports the framework and nothing else of the engine"


def test_the_contract_forbids_every_module_of_the_engine_but_the_framework() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    contract = next(item for item in settings["contracts"] if item["name"] == CONTRACT)
    engine = Path(next(iter(baton.engine.__path__)))
    modules = {path.stem for path in engine.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    allowed = {"__init__", "framework", "plugins"}
    assert {f"baton.engine.{name}" for name in modules - allowed} == set(contract["forbidden_modules"])


def test_everything_the_framework_offers_is_there() -> None:
    assert all(hasattr(framework, name) for name in framework.__all__)
