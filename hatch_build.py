"""The one build hook: compile `native/` and carry the shared libraries in the wheel.

They are preload and stand-in driver libraries, not Python extensions, so one wheel serves every Python:
the tag is `py3-none-<platform>`. An editable install gets the libraries in the source tree.
"""

import importlib.util
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeBuildHook(BuildHookInterface):  # type: ignore[misc]  # hatchling ships no types
    """Compiles the libraries of `native/build.py` into `src/baton/_native` before the wheel is packed."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002  # hatchling's signature
        if self.target_name != "wheel":
            return
        root = Path(self.root)
        spec = importlib.util.spec_from_file_location("native_build", root / "native" / "build.py")
        assert spec is not None
        assert spec.loader is not None
        native_build = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = native_build
        spec.loader.exec_module(native_build)
        libraries = native_build.build(root / "src" / "baton" / "_native")
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"
        build_data["pure_python"] = False
        build_data["artifacts"].extend(str(path.relative_to(root)) for path in libraries)
