"""Tables that programs can cut and people can read, on terminals of any width and without a terminal."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest

pytestmark = pytest.mark.process

GPUS = ",".join(f"{number:08x}" for number in range(8))
ROW = ["team-vision-production", "resnet-large-2026-11-17-worker-0", "Running", "ip-10-0-12-34.example.internal", GPUS]
REASON = "one node has too few GPUs, the other one has a taint that the pod does not tolerate"


def shown(*rows: list[str], columns: int = 0) -> list[str]:
    """The lines of a table without colours, on a terminal of a given width or in a pipe."""
    headings = [f"column{place}" for place in range(len(rows[0]))]
    code = f"from baton.cli.output import write_table; write_table({headings!r}, {rows!r})"
    if not columns:
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split(
            "\n"
        )
    reading, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 40, columns, 0, 0))
    environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")} | {
        "TERM": "xterm"
    }
    with subprocess.Popen([sys.executable, "-c", code], stdout=terminal, env=environment) as program:
        os.close(terminal)
        text = b""
        while chunk := _read(reading):
            text += chunk
    os.close(reading)
    assert program.returncode == 0
    return re.sub(r"\x1b\[[0-9;]*m", "", text.decode()).split("\r\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the last writer has closed it
        return b""


@pytest.mark.parametrize("columns", [0, 80, 40])
def test_names_stay_whole_and_a_row_is_one_line(columns: int) -> None:
    _, row, *_ = shown([*ROW, "x" * 60], columns=columns)
    assert row.split() == [*ROW, "x" * 60]


def test_a_sentence_wraps_only_on_a_terminal() -> None:
    _, first, second, *_ = shown(["2", REASON], columns=60)
    assert len(first) <= 60
    assert f"{first.rstrip()} {second.strip()}".split(maxsplit=1)[1].startswith("one node has too few GPUs, the other")
    _, row, *_ = shown(["2", REASON])
    assert row.split(maxsplit=1)[1] == REASON


def test_a_table_may_be_empty() -> None:
    assert "COLUMN0" in shown(["a"], columns=80)[0]
    code = "from baton.cli.output import write_table; write_table(['name', 'age'], [])"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.split() == ["NAME", "AGE"]
