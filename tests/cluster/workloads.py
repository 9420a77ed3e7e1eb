"""Programs for containers with cards, on NVIDIA's own bindings: what a workload image runs in these tests."""

_OPENING = """
import json, pathlib, sys, time
from cuda.bindings import driver

def must(answer):
    code, *rest = answer
    if code != driver.CUresult.CUDA_SUCCESS:
        raise SystemExit(f"failed: {code}")
    return rest[0] if rest else None

def open_card(index):
    device = must(driver.cuDeviceGet(index))
    must(driver.cuCtxCreate(None, 0, device))
    return bytes(must(driver.cuDeviceGetUuid(device)).bytes).hex()

must(driver.cuInit(0))
count = must(driver.cuDeviceGetCount())
size = 64 << 20
"""

REPORT = f"""{_OPENING}
cards, codes = [], []
for index in range(count):
    cards.append(open_card(index))
    codes.append(int(driver.cuMemAlloc(size)[0]))
    must(driver.cuCtxSynchronize())
print("report", json.dumps({{"cards": cards, "codes": codes}}), flush=True)
want = int(sys.argv[1]) if len(sys.argv) > 1 else 0
if want:
    code, _ = driver.cuMemAlloc(want << 20)
    print("report", json.dumps({{"want_mib": want, "code": int(code), "name": code.name}}), flush=True)
time.sleep(float(sys.argv[2]) if len(sys.argv) > 2 else 0)
"""
"""Takes some memory of every card it sees, then so many MiB of the last one, then sleeps for so many seconds."""

WORK = f"""{_OPENING}
end, pause_s = pathlib.Path(sys.argv[1]), float(sys.argv[2])
card = open_card(0)
total = driver.cuMemGetInfo()[2]
pointer = must(driver.cuMemAlloc(size))
turns = 0
while not turns or not end.exists():
    must(driver.cuMemsetD8(pointer, 1, size))
    must(driver.cuCtxSynchronize())
    turns += 1
    if turns == 1:
        print("works", json.dumps({{"card": card, "cards": count, "total_mib": total >> 20}}), flush=True)
    time.sleep(pause_s)
must(driver.cuMemFree(pointer))
print("done", turns, flush=True)
"""
"""Works on its first card until a file is there, with a pause after each piece of work."""


def raw(card: str) -> str:
    """A card's id as the driver tells it."""
    return card.removeprefix("GPU-").replace("-", "")
