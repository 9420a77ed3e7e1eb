"""Versions of the hook on the host, side by side and never changed.

A container that started months ago mounts the file that its Allocate answer names, and may start again from that answer
today. So each build of the library is stored under its version and digest, is written once, and stays after upgrades.
"""

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

from baton import __version__
from baton.errors import UnavailableError


def install(library: Path, directory: Path) -> Path:
    """Install the library unless it is already there; returns its permanent path."""
    try:
        content = library.read_bytes()
        digest = hashlib.sha256(content).hexdigest()[:12]
        folder = directory / f"{__version__}-{digest}"
        target = folder / library.name
        if target.is_file() and target.stat().st_size == len(content):
            return target
        folder.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, 0o755)
            os.replace(name, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
    except OSError as error:
        raise UnavailableError(
            f"the hook cannot be installed in {directory}: {error.strerror or error}; "
            "make the directory writable, or set hook.directory to a writable one"
        ) from None
    return target
