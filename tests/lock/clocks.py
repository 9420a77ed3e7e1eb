"""A time of day that a test can set, for every process that the test starts."""

import struct
from pathlib import Path

import pytest

from tests.hook.conftest import compile_c

DAY_S = 86_400
JUMPS = [DAY_S, -DAY_S, -10 * 365 * DAY_S, 40 * 365 * DAY_S, 0]


class Clock:
    """The time of day of all processes started from now on."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        source = str(Path(__file__).with_name("jumping_clock.c"))
        self.library = compile_c(source, folder / "jumping_clock.so", "-shared", "-fPIC")
        self.file = folder / "jump"
        self.jump(0)
        monkeypatch.setenv("JUMP_FILE", str(self.file))
        monkeypatch.setenv("LD_PRELOAD", str(self.library))

    def jump(self, by_s: int) -> None:
        with self.file.open("r+b" if self.file.exists() else "wb") as file:
            file.write(struct.pack("<q", by_s))


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(tmp_path, monkeypatch)
