"""`python -m bench [NAME…]`: run the named benchmarks, or all of them; `--list` prints their names."""

import importlib
import pkgutil
import sys

import bench


def names() -> list[str]:
    """The names of all benchmarks, which are the names of their modules."""
    return sorted(module.name for module in pkgutil.iter_modules(bench.__path__) if not module.name.startswith("_"))


def main(arguments: list[str]) -> int:
    known = names()
    if arguments == ["--list"]:
        for name in known:
            summary = (importlib.import_module(f"bench.{name}").__doc__ or "").strip().splitlines()[0]
            sys.stdout.write(f"{name:24} {summary}\n")
        return 0
    unknown = [name for name in arguments if name not in known]
    if unknown:
        sys.stderr.write(f"bench: unknown benchmark {', '.join(unknown)}; choose from {', '.join(known)}\n")
        return 2
    for name in arguments or known:
        module = importlib.import_module(f"bench.{name}")
        sys.stdout.write(f"\n== {name}: {(module.__doc__ or '').strip().splitlines()[0]}\n")
        sys.stdout.flush()
        module.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
