"""A leader renews its lease however many other requests its program has waiting."""

import asyncio
from typing import Any

from aiohttp import web

from baton.kube.client import Client
from baton.kube.election import Election
from baton.kube.kubeconfig import Access


async def test_a_candidate_does_not_stand_in_line_behind_its_programs_requests() -> None:
    lease: dict[str, Any] = {"metadata": {"name": "test", "resourceVersion": "1"}, "spec": {}}

    async def handle(request: web.Request) -> web.Response:
        if request.method == "PUT":
            lease["spec"] = (await request.json())["spec"]
        return web.json_response(lease)

    app = web.Application()
    app.router.add_route("*", "/apis/coordination.k8s.io/v1/namespaces/default/leases/test", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server = "http://{}:{}".format(*runner.addresses[0][:2])
    leading = asyncio.Event()

    async def lead() -> None:
        leading.set()
        await asyncio.Event().wait()

    async with Client(Access("x", server), qps=0.001, burst=1) as client:
        line = [asyncio.create_task(client.request("GET", "/else")) for _ in range(100)]
        await asyncio.sleep(0)
        task = asyncio.create_task(Election(client, "test", "default", "me").run(lead))
        await asyncio.wait_for(leading.wait(), 30)
        for waiting in (task, *line):
            waiting.cancel()
        await asyncio.gather(task, *line, return_exceptions=True)
    assert lease["spec"]["holderIdentity"] == "", "it was given back, too"
    await runner.cleanup()
