"""Every kind of work is gated in every variant: without a daemon, no call reaches the driver."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from baton.gpu import profiles, simulated
from tests.hook.conftest import ROOT, Workloads
from tests.hook.daemon import PATIENCE_S

NOT_READY = 802


def forms_of_work() -> list[tuple[str, str, int, int]]:
    """Symbol, name, version and cuGetProcAddress flags of all calls for work that the simulated driver knows."""
    text = (ROOT / "native" / "simgpu" / "names.h").read_text()
    work = r"(cu(?:Launch(?!HostFunc)|Memcpy|Memset|GraphLaunch|GraphUpload|MemPrefetch)\w*)"
    found = []
    for name, version, symbols in re.findall(rf"^[ETU]\({work}, (\d+)([^)]*)\)", text, re.M):
        for flags, symbol in zip((0, 2), symbols.split(", ")[1:] or [name], strict=False):
            found.append((symbol, name, int(version), flags))
    return found


@pytest.fixture
def card(tmp_path: Path) -> Iterator[dict[str, str]]:
    directory = tmp_path / "machine"
    simulated.start([profiles.find("t4")], directory)
    yield simulated.environment(directory)
    simulated.stop(directory, force=True)


def test_no_form_passes_without_a_turn(workloads: Workloads, card: dict[str, str]) -> None:
    """A gated call fails with the hook's own result; the driver would return a different one for these arguments."""
    forms = forms_of_work()
    assert len(forms) > 80
    code = f"""
use()
nothing = [ctypes.c_void_p(0)] * 12
pointer, kind = ctypes.c_void_p(), ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * len(nothing))
for symbol, name, version, flags in {forms}:
    check('cuGetProcAddress_v2', name.encode(), ctypes.byref(pointer), version, ctypes.c_uint64(flags), None)
    results = [call(symbol, *nothing), kind(pointer.value)(*nothing)]
    if results != [{NOT_READY}] * 2: say(symbol, version, flags, results)
say('tried')
"""
    work = workloads.python(code, **card, BATON_DAEMON_TIMEOUT="0", BATON_ON_DAEMON_LOSS="fail")
    out, err = work.communicate(timeout=PATIENCE_S)
    assert out == "tried\n", err
