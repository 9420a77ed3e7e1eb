"""Probes of a JobFlow over the network: whether every pod of a task answers.

A pod that does not answer within a second counts as not answering. It is probed again at the next sync.
"""

import asyncio
import contextlib
from collections.abc import Iterable, Sequence

import aiohttp

from baton.controllers.flow.rules import Check

_LIMIT_S = 1.0


async def holding(checks: Iterable[tuple[Check, Sequence[str]]]) -> set[Check]:
    """The checks that succeed: there are pods, all have an address, and all answer."""
    asked = [(check, addresses) for check, addresses in checks if addresses and all(addresses)]
    if not asked:
        return set()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_LIMIT_S)) as session:
        answers = await asyncio.gather(*(_all_answer(session, *one) for one in asked))
    return {check for (check, _), answered in zip(asked, answers, strict=True) if answered}


async def _all_answer(session: aiohttp.ClientSession, check: Check, addresses: Sequence[str]) -> bool:
    answers = await asyncio.gather(*(_answers(session, check, address) for address in addresses))
    return all(answers)


async def _answers(session: aiohttp.ClientSession, check: Check, address: str) -> bool:
    with contextlib.suppress(OSError, TimeoutError, aiohttp.ClientError, ValueError, OverflowError):
        if check.path is None:
            async with asyncio.timeout(_LIMIT_S):
                _, writer = await asyncio.open_connection(address, check.port)
            writer.close()
            return True
        host = f"[{address}]" if ":" in address else address
        headers = dict([check.header]) if check.header is not None and check.header[0] else {}
        url = f"http://{host}:{check.port}/{check.path.removeprefix('/')}"
        async with session.get(url, headers=headers, allow_redirects=False) as answer:
            return 200 <= answer.status < 400
    return False
