"""Versions of the hook on the host, side by side and never changed.

A container that was started months ago mounts the file that its Allocate answer names, and may be started again from
that answer today. So each build of the library lies under its version and digest, is written once, and is not removed
by an upgrade.
"""

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

from baton import __version__
from baton.errors import UnavailableError


def install(library: Path, directory: Path) -> Path:
    """Put the library there if it is not there yet; returns its lasting path."""
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
            "make the directory writable, or set hook.directory to one that is"
        ) from None
    return target
