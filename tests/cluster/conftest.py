"""A cluster with Baton in it, shared by the session."""

from collections.abc import Iterator

import pytest

from testbed.bed import Bed, BedOptions
from tests.cluster.programs import BatonPrograms

GPU_NODES = 2
GPUS_PER_NODE = 4
GPUS = GPU_NODES * GPUS_PER_NODE


@pytest.fixture(scope="session")
def baton_cluster() -> Iterator[BatonPrograms]:
    """Scheduler, controllers and admission against a bed of two KWOK nodes with four whole GPUs each.

    Tests may fill it and change the scheduler's configuration, and leave it empty; use a namespace of your own.
    """
    options = BedOptions(
        kwok_nodes=GPU_NODES,
        kwok_labels={"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"},
        kwok_resources={"nvidia.com/gpu": GPUS_PER_NODE},
        controller_manager=True,
    )
    with Bed(options) as bed, BatonPrograms(bed) as programs:
        yield programs


@pytest.fixture
def baton_namespace(baton_cluster: BatonPrograms) -> Iterator[str]:
    """A namespace of the test's own; its jobs are gone at the end."""
    with baton_cluster.bed.namespace("baton") as name:
        yield name
        baton_cluster.empty(name)
