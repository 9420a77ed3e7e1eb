"""The programs of a bed: which ones, which versions, and where they are.

Programs come in *sets* that are compiled together and cached together, one directory per set and version under the
user's cache directory. `BATON_TESTBED_PROGRAMS` names a directory with prebuilt programs instead: then nothing is
compiled, and a program that reports a different version than requested is rejected.
"""

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import BedError, MissingError

KUBERNETES_VERSION = os.environ.get("BATON_TESTBED_KUBERNETES", "1.36.4")
"""The default version of a bed; the variable lets all tests run on another release."""
ETCD_VERSION = "3.6.8"
KWOK_VERSION = "0.8.0"
VOLCANO_VERSION = "1.14.1"

READY_PROGRAMS_VARIABLE = "BATON_TESTBED_PROGRAMS"
TEST_PROGRAM = ".test"
"""The suffix of programs that Go builds from the tests of a package."""


@dataclass(frozen=True)
class ProgramSet:
    """Programs that are compiled from one module and have the same version."""

    name: str
    version: str
    programs: tuple[str, ...]

    @property
    def key(self) -> str:
        """The name of the set's directory in the cache."""
        return f"{self.name}-{self.version}"


def kubernetes(version: str = KUBERNETES_VERSION) -> ProgramSet:
    """The five programs of a Kubernetes release."""
    if not re.fullmatch(r"1\.\d+\.\d+", version):
        raise BedError(
            f"'{version}' is not a Kubernetes version; "
            f"expected three numbers without a leading v, for example {KUBERNETES_VERSION}"
        )
    return ProgramSet(
        "kubernetes",
        version,
        ("kube-apiserver", "kube-scheduler", "kubelet", "kubectl", "kube-controller-manager"),
    )


ETCD = ProgramSet("etcd", ETCD_VERSION, ("etcd",))
KWOK = ProgramSet("kwok", KWOK_VERSION, ("kwok",))
VOLCANO = ProgramSet(
    "volcano", VOLCANO_VERSION, ("vc-scheduler", "vc-controller-manager", "vc-webhook-manager", "vcctl")
)
VOLCANO_SUITE = ProgramSet(
    "volcano-suite",
    VOLCANO_VERSION,
    tuple(
        f"{package}{TEST_PROGRAM}"
        for package in (
            "admission",
            "jobp",
            "jobseq",
            "cronjob",
            "vcctl",
            "schedulingbase",
            "schedulingaction",
            "hypernode",
        )
    ),
)
"""Volcano's own end-to-end tests, one program per package."""


def default_sets(kubernetes_version: str = KUBERNETES_VERSION) -> tuple[ProgramSet, ...]:
    """The sets that the test suite uses; Volcano is built on request only."""
    return (ETCD, kubernetes(kubernetes_version), KWOK)


def cache_dir() -> Path:
    """The directory where compiled programs and images are kept between runs."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "baton" / "testbed"


def ready_programs_dir() -> Path | None:
    """The directory that the environment names in place of the cache, if any."""
    named = os.environ.get(READY_PROGRAMS_VARIABLE)
    if not named:
        return None
    path = Path(named)
    if not path.is_dir():
        raise BedError(f"{READY_PROGRAMS_VARIABLE} names {path}, which is not a directory; correct or unset it")
    return path.absolute()


def program_dir(program_set: ProgramSet) -> Path:
    """The directory of a set's programs, whether or not they exist yet."""
    return ready_programs_dir() or cache_dir() / program_set.key


def absent_programs(program_set: ProgramSet) -> list[str]:
    """The programs of a set that do not exist yet."""
    directory = program_dir(program_set)
    return [name for name in program_set.programs if not os.access(directory / name, os.X_OK)]


def locate(program_set: ProgramSet) -> Path:
    """The directory of a set, after checking that all its programs exist and have the right version.

    Raises `MissingError` with the command that builds them.
    """
    directory = program_dir(program_set)
    if absent := absent_programs(program_set):
        remedy = (
            f"add them or unset {READY_PROGRAMS_VARIABLE}"
            if ready_programs_dir()
            else f"run `python -m testbed build {build_words(program_set)}`"
        )
        raise MissingError(
            f"{program_set.name} {program_set.version} is not built: {', '.join(absent)} not in {directory}; {remedy}"
        )
    if ready_programs_dir():
        for name in program_set.programs:
            check_version(directory / name, program_set.version)
    return directory


def build_words(program_set: ProgramSet) -> str:
    """The arguments of `python -m testbed build` that build this set."""
    if program_set.name == "kubernetes" and program_set.version != KUBERNETES_VERSION:
        return f"kubernetes --kubernetes-version {program_set.version}"
    return program_set.name


def version_command(program: Path) -> list[str]:
    """The command that prints a program's version; kubectl and Volcano's command line use a subcommand, not a flag."""
    if program.name == "kubectl":
        return [str(program), "version", "--client"]
    if program.name == "vcctl":
        return [str(program), "version"]
    return [str(program), "--version"]


@functools.cache
def check_version(program: Path, version: str) -> None:
    """Reject a program that does not report the expected version.

    A test program has no version of its own; the version of its module is part of the build information in the binary.
    """
    if program.suffix == TEST_PROGRAM:
        if f"\tvolcano.sh/volcano\tv{version}\t".encode() not in program.read_bytes():
            raise BedError(f"{program} is not from Volcano {version}; rebuild it or name another directory")
        return
    try:
        answer = subprocess.run(version_command(program), capture_output=True, text=True, timeout=30, check=False)
    except OSError as error:
        raise BedError(f"cannot run {program} ({error}); build it for this machine") from error
    reported = " ".join((answer.stdout + answer.stderr).split())
    if not re.search(rf"(?<![\d.])v?{re.escape(version)}(?![\d.])", reported):
        raise BedError(
            f"{program} is not version {version}: it reports '{reported[:120]}'; rebuild it or name another directory"
        )


def find_tool(name: str, package: str, *, more_directories: Sequence[str] = ()) -> Path:
    """A program of the operating system, by name; the error names the Debian package."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin", *more_directories])
    found = shutil.which(name, path=path)
    if found is None:
        raise MissingError(f"{name} is not on PATH; install it (Debian: apt-get install {package})")
    return Path(found)
