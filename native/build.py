"""Compiles the C libraries: the only place that lists the sources and flags of each library.

The wheel's build hook and `make native` use it, and so do tests that need a sanitizer build
(`python native/build.py --out DIR --sanitize address`). A library is recompiled only when its sources,
its headers or the flags have changed.
"""

import argparse
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

NATIVE = Path(__file__).resolve().parent

_WARNINGS = ["-Wall", "-Wextra", "-Werror", "-Wshadow", "-Wstrict-prototypes", "-Wno-unused-parameter"]
_COMMON = ["-std=gnu11", "-O2", "-g1", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden", *_WARNINGS]


@dataclass(frozen=True)
class Library:
    """One shared library: its file name below the output folder, its source folder, and its special flags.

    `sources` and `exclude` are globs inside the folder; every header there counts as an input.
    """

    output: str
    folder: str
    flags: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    sources: tuple[str, ...] = ("*.c",)
    exclude: tuple[str, ...] = ()


# The hook links libdl and libpthread explicitly: new C libraries include both, older ones do not.
_HOOK_FLAGS = ("-Wl,--version-script=baton.map", "-Wl,-z,nodelete")
_HOOK_LIBRARIES = ("-Wl,--no-as-needed", "-l:libdl.so.2", "-l:libpthread.so.0", "-Wl,--as-needed")

# As in NVIDIA's driver, calls between entry points are internal and bypass a preloaded hook.
_DRIVER_FLAGS = ("-Wl,-z,nodelete", "-Wl,-Bsymbolic")

LIBRARIES = (
    Library("libbaton.so", "hook", flags=_HOOK_FLAGS, libraries=_HOOK_LIBRARIES),
    Library("simgpu/libcuda.so.1", "simgpu", exclude=("nvml*.c",), flags=_DRIVER_FLAGS, libraries=("-lm",)),
    Library("simgpu/libnvidia-ml.so.1", "simgpu", sources=("machine*.c", "nvml*.c"), libraries=("-lm",)),
    Library("simgpu/libsimgpu.so", "simgpu", sources=("machine*.c",), libraries=("-lm",)),
)


class BuildError(SystemExit):
    """One sentence; ends the build process."""


def compiler() -> str:
    """The C compiler to use: $CC, or the first of cc, gcc, clang that is installed."""
    wanted = shlex.split(os.environ.get("CC", ""))
    candidates = wanted[:1] or ["cc", "gcc", "clang"]
    for name in candidates:
        found = shutil.which(name)
        if found:
            return found
    tried = ", ".join(candidates)
    raise BuildError(
        f"baton: no C compiler found (tried {tried}); install one (Debian: apt-get install gcc libc6-dev) or set CC"
    )


def build(out: Path, sanitize: str = "", only: str = "") -> list[Path]:
    """Compile every outdated library into `out`, or only the library `only`; return their paths."""
    return [_compile(library, out, sanitize) for library in LIBRARIES if only in ("", library.output)]


def _compile(library: Library, out: Path, sanitize: str) -> Path:
    folder = NATIVE / library.folder
    excluded = {path for pattern in library.exclude for path in folder.glob(pattern)}
    sources = sorted({path for pattern in library.sources for path in folder.glob(pattern)} - excluded)
    target = out / library.output
    flags = [*_COMMON, *library.flags]
    if sanitize:
        flags += [f"-fsanitize={sanitize}", "-fno-omit-frame-pointer", "-O1"]
    soname = f"-Wl,-soname,{Path(library.output).name}"
    command = [compiler(), *flags, soname, "-o", str(target), *map(str, sources), *library.libraries]
    digest = hashlib.sha256("\0".join(command).encode())
    for path in sorted([*sources, *folder.glob("*.h"), *folder.glob("*.map")]):
        digest.update(path.read_bytes())
    stamp = target.with_name(f".{target.name}.stamp")
    if target.exists() and stamp.exists() and stamp.read_text() == digest.hexdigest():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    command[command.index("-o") + 1] = str(fresh)
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    if done.returncode != 0:
        fresh.unlink(missing_ok=True)
        raise BuildError(f"{done.stderr}baton: compiling {library.output} failed with {Path(command[0]).name}")
    fresh.replace(target)  # a running program keeps the old file
    stamp.write_text(digest.hexdigest())
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=NATIVE.parent / "src" / "baton" / "_native")
    parser.add_argument("--sanitize", default="", help="address, undefined, thread, or a comma-separated list of them")
    parser.add_argument("--only", default="", choices=["", *(library.output for library in LIBRARIES)])
    arguments = parser.parse_args()
    for path in build(arguments.out, arguments.sanitize, arguments.only):
        sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
