"""Where the compiled C libraries of this installation are.

The build hook puts them under `baton/_native`; an editable install has them there too (`make native`).
"""

from pathlib import Path

from baton.errors import UnavailableError

_FOLDER = Path(__file__).parent / "_native"


def library(name: str) -> Path:
    """The path of one library, such as `libbaton.so` or `simgpu/libcuda.so.1`."""
    path = _FOLDER / name
    if not path.is_file():
        raise UnavailableError(
            f"the native library {name} is missing from this installation ({path}); "
            "install a C compiler and reinstall Baton, or run `make native` in a checkout"
        )
    return path
