"""Regenerate the message modules after a change to a `.proto` file; needs grpcio-tools (dependency group `proto`)."""

import sys
from pathlib import Path

from grpc_tools import protoc

_SOURCES = Path(__file__).resolve().parents[3]


def generate(target: Path) -> None:
    """Write `*_pb2.py` and `*_pb2.pyi` of every `.proto` file here below `target`, as `baton/agent/proto/…`."""
    files = sorted(str(path.relative_to(_SOURCES)) for path in Path(__file__).parent.glob("*.proto"))
    code = protoc.main(["protoc", f"-I{_SOURCES}", f"--python_out={target}", f"--pyi_out={target}", *files])
    if code:
        sys.exit(code)


if __name__ == "__main__":
    generate(_SOURCES)
