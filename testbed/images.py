"""Container images built on this machine, without a registry and without a container builder.

An image is an archive in the format of `docker save`, which containerd imports: pause (one static program), busybox
(Debian's static build with all its applets), and the workload image: busybox, this machine's Python with its standard
library, the shared libraries that both need, and NVIDIA's CUDA bindings. A CUDA program runs in it once a
`libcuda.so.1` is mounted. Archives are cached, keyed by their inputs. The image of Baton itself is not cached, because
it changes with every file of the checkout; its base image, with Python and Baton's dependencies, is.
Both contain byte code: containers with a read-only file system would compile every module at each start.
"""

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import io
import json
import os
import platform
import py_compile
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from testbed.building import exclusive
from testbed.errors import BedError, MissingError
from testbed.programs import cache_dir, find_tool

PAUSE = "baton.test/pause:1"
BUSYBOX = "baton.test/busybox:1"
WORKLOAD = "baton.test/workload:1"
RUNTIME = "baton.test/runtime:1"
PRODUCT = "baton.test/baton:1"

_PAUSE_SOURCE = """\
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
static void leave(int number) { (void)number; _exit(0); }
static void reap(int number) { (void)number; while (waitpid(-1, 0, WNOHANG) > 0) {} }
int main(void) { signal(SIGINT, leave); signal(SIGTERM, leave); signal(SIGCHLD, reap); for (;;) pause(); }
"""

_PYTHON_LEAVE_OUT = re.compile(
    r"(^|/)(__pycache__|test|tests|idlelib|tkinter|turtledemo|ensurepip|lib2to3|site-packages|dist-packages|config-[^/]*)(/|$)"
)
_CUDA_DISTRIBUTIONS = ("cuda-bindings", "cuda-pathfinder")
_PRODUCT_EXTRAS = ("node", "certs", "uvloop")
_PACKAGES_AT = "opt/python"
# Another checkout may be using its own archive; archives that have not been used for a week are deleted.
_UNUSED_S = 7 * 24 * 3600
# Programs open these by name at run time, so the lists of linked libraries do not include them.
_OPENED_BY_NAME = ("libdl.so.2", "libpthread.so.0", "librt.so.1", "libm.so.6", "libgcc_s.so.1", "libstdc++.so.6")


@dataclass
class Tree:
    """The files of a layer: maps a path in the image to its content, its source or its link target."""

    content: dict[str, bytes] = field(default_factory=dict)
    sources: dict[str, Path] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    executables: set[str] = field(default_factory=set)

    def add_program(self, source: Path, path: str) -> None:
        """Add an executable file."""
        self.sources[path] = source
        self.executables.add(path)

    def compile(self, scratch: Path) -> None:
        """Add the byte code of all modules next to them; Python does not compare it with the source when loading."""
        for number, (path, source) in enumerate(list(self.sources.items())):
            if source.suffix == ".py":
                code = scratch / f"{number}.pyc"
                mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
                with contextlib.suppress(py_compile.PyCompileError):
                    py_compile.compile(str(source), str(code), f"/{path}", doraise=True, invalidation_mode=mode)
                    self.sources[importlib.util.cache_from_source(path)] = code

    def write(self, out: Path) -> None:
        """Write the layer as a tar archive whose bytes depend only on the files."""
        paths = sorted({*self.content, *self.sources, *self.links})
        folders = sorted({str(parent) for path in paths for parent in PurePosixPath(path).parents} - {"."})
        with tarfile.open(out, "w", format=tarfile.PAX_FORMAT) as archive:
            for folder in [*folders, "tmp"]:
                entry = tarfile.TarInfo(folder)
                entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
                archive.addfile(entry)
            for path in paths:
                entry = tarfile.TarInfo(path)
                entry.mode = 0o755 if path in self.executables else 0o644
                if path in self.links:
                    entry.type, entry.linkname = tarfile.SYMTYPE, self.links[path]
                    archive.addfile(entry)
                    continue
                data = self.content[path] if path in self.content else self.sources[path].read_bytes()
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))


def _pause_tree(scratch: Path) -> Tree:
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise MissingError("the pause image needs a C compiler; install one (Debian: apt-get install gcc libc6-dev)")
    source, program = scratch / "pause.c", scratch / "pause"
    source.write_text(_PAUSE_SOURCE)
    result = subprocess.run(
        [compiler, "-Os", "-static", "-o", str(program), str(source)], capture_output=True, text=True, check=False
    )
    if result.returncode != 0:
        raise BedError(f"cannot compile the pause program statically: {' '.join(result.stderr.split())[:200]}")
    tree = Tree()
    tree.add_program(program, "pause")
    return tree


def _busybox_tree(_scratch: Path) -> Tree:
    busybox = find_tool("busybox", "busybox-static")
    tree = Tree()
    tree.add_program(busybox, "bin/busybox")
    applets = subprocess.run([str(busybox), "--list"], capture_output=True, text=True, check=True).stdout.split()
    tree.links.update({f"bin/{applet}": "busybox" for applet in applets if applet != "busybox"})
    tree.content["etc/passwd"] = b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n"
    tree.content["etc/group"] = b"root:x:0:\nnogroup:x:65534:\n"
    return tree


def _workload_tree(scratch: Path) -> Tree:
    return _python_tree(scratch, _CUDA_DISTRIBUTIONS)


def _runtime_tree(scratch: Path) -> Tree:
    tree = _python_tree(scratch, _needed_by("baton", _PRODUCT_EXTRAS))
    tree.compile(scratch)
    return tree


def _product_tree(scratch: Path) -> Tree:
    import baton

    tree = Tree(sources={f"{_PACKAGES_AT}/{inside}": path for path, inside in _distribution_files("baton")})
    package = Path(str(baton.__file__)).parent
    for path in package.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            tree.sources[f"{_PACKAGES_AT}/baton/{path.relative_to(package).as_posix()}"] = path
    tree.compile(scratch)
    return tree


def _needed_by(name: str, extras: Sequence[str] = ()) -> list[str]:
    """All dependencies of a distribution with its extras, excluding itself."""
    found: dict[str, None] = {}
    open_names = [(name, extras)]
    while open_names:
        name, extras = open_names.pop()
        found[name] = None
        for line in importlib.metadata.requires(name) or []:
            needed = re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0]
            extra = re.search(r"extra == ['\"]([^'\"]+)['\"]", line)
            if (extra is None or extra[1] in extras) and needed not in found and _is_installed(needed):
                open_names.append((needed, ()))
    return list(found)[1:]


def _is_installed(name: str) -> bool:
    """Requirements for other Pythons or systems are not installed; a missing one of ours shows up at run time."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return bool(importlib.metadata.version(name))
    return False


def _python_tree(scratch: Path, distributions: Iterable[str]) -> Tree:
    tree = _busybox_tree(scratch)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    interpreter = Path(sys.executable).resolve()
    tree.add_program(interpreter, f"usr/local/bin/{version}")
    for name in ("python", "python3"):
        tree.links[f"usr/local/bin/{name}"] = version
    binaries = [interpreter]
    library = Path(sysconfig.get_path("stdlib"))
    for path in library.rglob("*"):
        inside = path.relative_to(library).as_posix()
        if path.is_file() and not _PYTHON_LEAVE_OUT.search(inside):
            tree.sources[f"usr/local/lib/{version}/{inside}"] = path
            if path.suffix == ".so":
                binaries.append(path)
    for name in distributions:
        for path, inside in _distribution_files(name):
            tree.sources[f"{_PACKAGES_AT}/{inside}"] = path
            if ".so" in path.suffixes:
                binaries.append(path)
    # A distribution finds its bundled libraries by relative path.
    own = {path.resolve() for path in tree.sources.values()}
    for path, inside in _shared_libraries(binaries):
        if path not in own:
            tree.add_program(path, inside)
    return tree


def _distribution_files(name: str) -> list[tuple[Path, str]]:
    try:
        files = importlib.metadata.distribution(name).files or []
    except importlib.metadata.PackageNotFoundError as error:
        raise MissingError(f"the bed's images need the Python package {name}; run `make setup`") from error
    kept = [file for file in files if not {"__pycache__", "tests", ".."} & set(file.parts)]
    return [(Path(str(file.locate())), file.as_posix()) for file in kept]


def _shared_libraries(binaries: Iterable[Path]) -> list[tuple[Path, str]]:
    """The libraries that the loader would load, placed in its default directory; the loader keeps its own path."""
    output = subprocess.run(["ldd", *map(str, binaries)], capture_output=True, text=True, check=False).stdout
    named = dict(re.findall(r"^\s*(\S+) => (/\S+) \(0x", output, re.MULTILINE))
    if "libc.so.6" not in named:
        raise BedError("the workload image needs a Python that is linked with glibc; run the bed with such a Python")
    beside = Path(named["libc.so.6"]).parent
    for name in _OPENED_BY_NAME:
        found = next(
            (folder / name for folder in (beside, Path("/usr", *beside.parts[1:])) if (folder / name).exists()), None
        )
        if found is not None:
            named.setdefault(name, str(found))
    home = str(beside).lstrip("/")
    libraries = [(Path(source).resolve(), f"{home}/{name}") for name, source in named.items()]
    loaders = set(re.findall(r"^\s*(/\S+) \(0x", output, re.MULTILINE))
    return libraries + [(Path(loader).resolve(), loader.lstrip("/")) for loader in sorted(loaders)]


@dataclass(frozen=True)
class Recipe:
    """How to build an image, and which inputs besides this module determine its bytes."""

    tree: Callable[[Path], Tree]
    config: dict[str, object]
    inputs: Callable[[], list[str]] = list


def _workload_inputs() -> list[str]:
    return [sys.version, sys.executable, *(importlib.metadata.version(name) for name in _CUDA_DISTRIBUTIONS)]


def _runtime_inputs() -> list[str]:
    needed = _needed_by("baton", _PRODUCT_EXTRAS)
    return [sys.version, sys.executable, *(f"{name} {importlib.metadata.version(name)}" for name in sorted(needed))]


_PATH = "PATH=/usr/local/bin:/bin"
_PYTHON_ENVIRONMENT = [_PATH, f"PYTHONPATH=/{_PACKAGES_AT}", "PYTHONUNBUFFERED=1"]
RECIPES = {
    PAUSE: Recipe(_pause_tree, {"Entrypoint": ["/pause"]}),
    BUSYBOX: Recipe(_busybox_tree, {"Cmd": ["/bin/sh"], "Env": [_PATH]}),
    WORKLOAD: Recipe(
        _workload_tree,
        {"Cmd": ["python3"], "Env": _PYTHON_ENVIRONMENT},
        _workload_inputs,
    ),
    RUNTIME: Recipe(_runtime_tree, {"Cmd": ["python3"], "Env": _PYTHON_ENVIRONMENT}, _runtime_inputs),
}


def archive(name: str) -> Path:
    """The archive of an image, built unless it is in the cache."""
    recipe = RECIPES.get(name)
    if recipe is None:
        raise BedError(f"there is no image '{name}' in the bed; it has {', '.join(RECIPES)}")
    ingredients = [name, Path(__file__).read_text(), *recipe.inputs()]
    digest = hashlib.sha256("\0".join(ingredients).encode()).hexdigest()[:16]
    stem = name.partition("/")[2].replace(":", "-")
    place = cache_dir() / "images" / f"{stem}-{digest}.tar"
    if place.exists():
        os.utime(place)
        return place
    with exclusive(place.with_name(f"{stem}.lock"), waiting=f"image {name}: waiting for another run to build it"):
        if not place.exists():
            with tempfile.TemporaryDirectory(prefix=f".{stem}.", dir=place.parent) as scratch:
                folder = Path(scratch)
                recipe.tree(folder).write(folder / "layer.tar")
                _assemble(name, recipe.config, [folder / "layer.tar"], folder).rename(place)
            for older in place.parent.glob(f"{stem}-*.tar"):
                if time.time() - older.stat().st_mtime > _UNUSED_S:
                    older.unlink()
    return place


def product_archive(folder: Path) -> Path:
    """The image of Baton from this checkout, built in `folder`."""
    with tarfile.open(archive(RUNTIME)) as runtime, (folder / "runtime.tar").open("wb") as layer:
        packed = runtime.extractfile("layer.tar")
        assert packed is not None, "the runtime image has one layer"
        shutil.copyfileobj(packed, layer)
    _product_tree(folder).write(folder / "baton.tar")
    config: dict[str, object] = {"Entrypoint": ["python3", "-m", "baton.cli.main"], "Env": _PYTHON_ENVIRONMENT}
    return _assemble(PRODUCT, config, [folder / "runtime.tar", folder / "baton.tar"], folder)


def _assemble(name: str, settings: dict[str, object], layers: Sequence[Path], folder: Path) -> Path:
    """The archive of an image with these layers, lowest first."""
    digests = []
    for layer in layers:
        with layer.open("rb") as content:
            digests.append(f"sha256:{hashlib.file_digest(content, 'sha256').hexdigest()}")
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    config = {
        "architecture": architecture,
        "os": "linux",
        "config": settings,
        "rootfs": {"type": "layers", "diff_ids": digests},
        "history": [{"created_by": "baton test bed"} for _ in layers],
    }
    (folder / "config.json").write_text(json.dumps(config))
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": [layer.name for layer in layers]}]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    out = folder / "image.tar"
    with tarfile.open(out, "w") as image:
        for part in ("manifest.json", "config.json", *(layer.name for layer in layers)):
            image.add(folder / part, part)
    return out
