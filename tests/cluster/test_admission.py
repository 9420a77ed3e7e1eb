"""What a bed's API server offers beyond pods: admission webhooks served by the test, CRDs, the audit log."""

import base64
import datetime
import http.server
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from testbed.bed import Bed
from testbed.errors import BedError

pytestmark = pytest.mark.cluster

Answer = Callable[[dict[str, Any]], dict[str, Any]]


@contextmanager
def webhook(bed: Bed, answer: Answer) -> Iterator[int]:
    """An HTTPS server in this process that answers admission reviews; yields its port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            request = review["request"]
            body = json.dumps({**review, "response": {"uid": request["uid"], **answer(request)}}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*bed.plane.pki.issue("webhook", "webhook", hosts=["127.0.0.1"]))
    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def configuration(bed: Bed, namespace: str, port: int) -> dict[str, Any]:
    trust = base64.b64encode(bed.plane.pki.certificate.read_bytes()).decode()
    return {
        "metadata": {"name": namespace},
        "webhooks": [
            {
                "name": "pods.testbed.baton.dev",
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "failurePolicy": "Fail",
                "clientConfig": {"url": f"https://127.0.0.1:{port}/", "caBundle": trust},
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                "rules": [
                    {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
                ],
            }
        ],
    }


def test_a_webhook_served_from_the_test_is_called_and_changes_the_object(kwok_bed: Bed, kwok_namespace: str) -> None:
    seen: list[str] = []

    def add_label(request: dict[str, Any]) -> dict[str, Any]:
        seen.append(request["object"]["metadata"]["name"])
        patch = [{"op": "add", "path": "/metadata/labels", "value": {"touched-by": "the-test"}}]
        return {
            "allowed": True,
            "patchType": "JSONPatch",
            "patch": base64.b64encode(json.dumps(patch).encode()).decode(),
        }

    path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
    with webhook(kwok_bed, add_label) as port:
        kwok_bed.api.create(path, configuration(kwok_bed, kwok_namespace, port))
        try:
            made = 0

            def touched() -> bool:
                nonlocal made
                made += 1
                body = {"metadata": {"name": f"probe-{made}"}}
                created = kwok_bed.api.create(f"/api/v1/namespaces/{kwok_namespace}/configmaps", body)
                return bool(created["metadata"].get("labels", {}).get("touched-by") == "the-test")

            kwok_bed.wait_for(touched, "the API server to know the webhook")
            assert seen == [f"probe-{made}"]
        finally:
            kwok_bed.api.delete(f"{path}/{kwok_namespace}")


def test_a_webhook_can_refuse_with_a_sentence(kwok_bed: Bed, kwok_namespace: str) -> None:
    def refuse(_: dict[str, Any]) -> dict[str, Any]:
        return {"allowed": False, "status": {"message": "not on a Monday"}}

    path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
    with webhook(kwok_bed, refuse) as port:
        kwok_bed.api.create(path, configuration(kwok_bed, kwok_namespace, port))
        try:
            words = ["create", "configmap", "refused", "-n", kwok_namespace, "--dry-run=server"]

            def refused() -> bool:
                try:
                    kwok_bed.kubectl(*words)
                except BedError as error:
                    return "not on a Monday" in str(error)
                return False

            kwok_bed.wait_for(refused, "the API server to know the webhook")
        finally:
            kwok_bed.api.delete(f"{path}/{kwok_namespace}")


def test_a_custom_resource_is_served_and_validated(kwok_bed: Bed, kwok_namespace: str) -> None:
    schema = {
        "type": "object",
        "properties": {"spec": {"type": "object", "properties": {"size": {"type": "integer", "minimum": 1}}}},
    }
    kwok_bed.apply(
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": "gangs.testbed.baton.dev"},
            "spec": {
                "group": "testbed.baton.dev",
                "scope": "Namespaced",
                "names": {"kind": "Gang", "plural": "gangs", "singular": "gang"},
                "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
            },
        }
    )
    kwok_bed.kubectl(
        "wait", "--for=condition=Established", "crd/gangs.testbed.baton.dev", "--timeout=60s", timeout_s=90
    )
    collection = f"/apis/testbed.baton.dev/v1/namespaces/{kwok_namespace}/gangs"
    gang = {"apiVersion": "testbed.baton.dev/v1", "kind": "Gang", "metadata": {"name": "quartet"}, "spec": {"size": 4}}
    kwok_bed.wait_for(lambda: bool(kwok_bed.api.create(collection, gang)), "the new kind to be served")
    assert kwok_bed.api.get(f"{collection}/quartet")["spec"] == {"size": 4}
    with pytest.raises(BedError, match="should be greater than or equal to 1"):
        kwok_bed.api.create(collection, {**gang, "metadata": {"name": "nobody"}, "spec": {"size": 0}})


def test_the_audit_log_has_every_request_with_microseconds(kwok_bed: Bed, kwok_namespace: str) -> None:
    kwok_bed.api.create(f"/api/v1/namespaces/{kwok_namespace}/configmaps", {"metadata": {"name": "audited"}})

    def entries() -> list[dict[str, Any]]:
        found = kwok_bed.plane.audited('"audited"', kwok_namespace)
        return [entry for entry in found if entry["verb"] == "create" and entry["user"]["username"] == "admin"]

    kwok_bed.wait_for(lambda: len(entries()) == 1, "the request to be in the audit log")
    (entry,) = entries()
    assert entry["level"] == "Metadata"
    began = datetime.datetime.fromisoformat(entry["requestReceivedTimestamp"])
    ended = datetime.datetime.fromisoformat(entry["stageTimestamp"])
    assert began < ended
    assert began.microsecond % 1000 or ended.microsecond % 1000
