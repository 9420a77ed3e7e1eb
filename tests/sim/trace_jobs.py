"""Jobs of traces for tests."""

import msgspec

from baton.sim.traces.workload import TraceJob


def job(name: str, duration_s: float, *, submit_s: float = 0, cards: int = 1, **fields: object) -> TraceJob:
    plain = TraceJob(name=name, duration_s=duration_s, submit_s=submit_s, cards=cards)
    return msgspec.structs.replace(plain, **fields)
