"""Heat, power and utilisation depend only on what ran and when, not on how often they are read.

A small C program advances one card (a P100: 27 to 250 W, 34 to 68 °C, 25 s) through modelled time; these tests never
wait.
"""

import json
import math
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("probe") / "telemetry_probe"
    folder = ROOT / "native" / "simgpu"
    sources = [str(Path(__file__).with_name("telemetry_probe.c")), *map(str, sorted(folder.glob("machine*.c")))]
    flags = ["-std=gnu11", "-O1", "-pthread", "-fsanitize=undefined", "-fno-sanitize-recover=all"]
    command = [os.environ.get("CC", "cc"), *flags, "-I", str(folder), "-o", str(target), *sources, "-lm"]
    subprocess.run(command, check=True)
    return target


def read(probe: Path, *kernels: tuple[int, float, float], end_s: float, steps: int = 1, scale: float = 1) -> Any:
    """The sensors at `end_s` after kernels (process, demand, seconds) that all started at zero."""
    words = [str(word) for kernel in kernels for word in kernel]
    done = subprocess.run(
        [str(probe), str(steps), str(scale), *words, str(end_s)], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def test_heat_follows_load_like_a_first_order_system(probe: Path) -> None:
    heated = read(probe, (0, 1, 100), end_s=50)
    assert heated["temperature_c"] == pytest.approx(34 + 34 * (1 - math.exp(-50 / 25)))
    peak = 34 + 34 * (1 - math.exp(-10 / 25))
    cooled = read(probe, (0, 1, 10), end_s=60)
    assert cooled["temperature_c"] == pytest.approx(34 + (peak - 34) * math.exp(-50 / 25))


def test_readings_do_not_depend_on_how_often_they_are_taken(probe: Path) -> None:
    seldom = read(probe, (0, 0.7, 3), (1, 0.4, 5), end_s=9)
    often = read(probe, (0, 0.7, 3), (1, 0.4, 5), end_s=9, steps=997)
    for key in ("temperature_c", "load", "energy_mj", "busy", "memory", "power_w"):
        assert often[key] == pytest.approx(seldom[key], rel=1e-6), key


def test_energy_is_the_integral_of_power(probe: Path) -> None:
    read_out = read(probe, (0, 1, 10), end_s=50)
    assert read_out["energy_mj"] == pytest.approx(1000 * (250 * 10 + 27 * 40), rel=1e-6)


def test_power_goes_from_idle_to_the_limit_and_a_small_kernel_takes_less(probe: Path) -> None:
    assert read(probe, end_s=5)["power_w"] == 27
    small = read(probe, (0, 0.1, 10), end_s=5)["power_w"]
    full = read(probe, (0, 1, 10), end_s=5)["power_w"]
    assert 27 < small < full
    assert full == pytest.approx(250)


def test_utilisation_is_the_busy_part_of_the_last_second(probe: Path) -> None:
    assert read(probe, (0, 1, 10), end_s=5)["busy"] == pytest.approx(1)
    assert read(probe, (0, 1, 4.6), end_s=5)["busy"] == pytest.approx(0.6, abs=0.01)
    assert read(probe, (0, 1, 1), end_s=5)["busy"] == 0


@pytest.mark.parametrize(
    ("kernels", "parts"),
    [
        ([(0, 1, 60), (1, 1, 60)], [0.5, 0.5]),
        ([(0, 1, 60), (1, 1, 60), (2, 0.5, 60)], [0.4, 0.4, 0.2]),
        ([(0, 0.1, 60), (1, 0.3, 60)], [0.25, 0.75]),
        ([(0, 0.2, 60), (0, 0.2, 60), (1, 0.4, 60)], [0.5, 0.5]),
    ],
)
def test_the_parts_of_processes_that_share_add_up_to_the_whole(
    probe: Path, kernels: list[tuple[int, float, float]], parts: list[float]
) -> None:
    shared = read(probe, *kernels, end_s=3)
    assert shared["parts"] == pytest.approx(parts)
    assert sum(shared["parts"]) == pytest.approx(shared["busy"])


def test_time_runs_faster_with_the_time_scale(probe: Path) -> None:
    fast = read(probe, (0, 1, 100), end_s=50, scale=20)
    plain = read(probe, (0, 1, 100), end_s=50)
    assert fast["temperature_c"] == pytest.approx(plain["temperature_c"])
    assert fast["busy"] == pytest.approx(1)


def test_clocks_rise_under_load_and_drop_with_heat(probe: Path) -> None:
    assert read(probe, end_s=5)["clock_mhz"] == 405
    cold = read(probe, (0, 1, 1000), end_s=0.5)["clock_mhz"]
    warm = read(probe, (0, 1, 1000), end_s=500)["clock_mhz"]
    assert 1189 < warm < cold <= 1328
