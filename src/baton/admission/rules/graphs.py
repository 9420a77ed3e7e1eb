"""Dependency graphs: finds a cycle, if there is one."""

from collections.abc import Mapping, Sequence


def cycle(edges: Mapping[str, Sequence[str]]) -> list[str]:
    """A path that ends where it began, or nothing. It does not recurse, because input may be arbitrarily deep."""
    done: set[str] = set()
    for start in edges:
        path: list[str] = []
        on_path: set[str] = set()
        stack: list[tuple[str, bool]] = [(start, False)]
        while stack:
            name, leaving = stack.pop()
            if leaving:
                on_path.discard(path.pop())
                done.add(name)
                continue
            if name in on_path:
                return [*path[path.index(name) :], name]
            if name in done:
                continue
            path.append(name)
            on_path.add(name)
            stack.append((name, True))
            stack.extend((target, False) for target in edges.get(name, ()))
    return []
