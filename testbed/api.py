"""A plain client of the bed's API server, using only the standard library.

The tests must not depend on the code that they test.
"""

import contextlib
import http.client
import json
import ssl
import threading
import urllib.parse
from collections.abc import Generator
from pathlib import Path
from typing import Any

from testbed.errors import BedError

Object = dict[str, Any]


class ApiError(BedError):
    """The API server rejected a request; `status` is the HTTP status code."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Api:
    """Requests as one user. Thread-safe: each thread has its own connection."""

    def __init__(self, server: str, authority: Path, certificate: Path, key: Path) -> None:
        self.server = server
        parts = urllib.parse.urlsplit(server)
        assert parts.hostname is not None
        self._host, self._port = parts.hostname, parts.port or 443
        self._tls = ssl.create_default_context(cafile=str(authority))
        self._tls.load_cert_chain(certificate, key)
        self._mine = threading.local()
        self._connections: set[http.client.HTTPSConnection] = set()

    def _connection(self) -> http.client.HTTPSConnection:
        connection: http.client.HTTPSConnection | None = getattr(self._mine, "connection", None)
        if connection is None:
            connection = http.client.HTTPSConnection(self._host, self._port, context=self._tls, timeout=30)
            self._mine.connection = connection
            self._connections.add(connection)
        return connection

    def close(self) -> None:
        """Close the connections of all threads."""
        for connection in self._connections:
            connection.close()

    def request(
        self, method: str, path: str, body: Any = None, *, content_type: str = "application/json"
    ) -> tuple[int, bytes]:
        """One request and its complete answer; reconnects once if the server has closed the connection."""
        data = None if body is None else json.dumps(body).encode()
        headers = {} if data is None else {"Content-Type": content_type}
        connection = self._connection()
        fresh = connection.sock is None
        try:
            connection.request(method, path, body=data, headers=headers)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException):
            connection.close()
            if fresh:
                raise
            return self.request(method, path, body, content_type=content_type)

    def call(self, method: str, path: str, body: Any = None, *, content_type: str = "application/json") -> Any:
        """One request. Returns JSON as objects and anything else as text; raises `ApiError` if it is rejected."""
        status, answer = self.request(method, path, body, content_type=content_type)
        text = answer.decode(errors="replace")
        with contextlib.suppress(ValueError):
            value = json.loads(text)
            if status >= 400 and isinstance(value, dict):
                raise ApiError(status, f"{method} {path}: {status} {value.get('message', text)}")
            if isinstance(value, dict):
                return value
        if status >= 400:
            raise ApiError(status, f"{method} {path}: {status} {text[:300]}")
        return text

    def get(self, path: str) -> Any:
        """Read an object, a list or a log."""
        return self.call("GET", path)

    def create(self, path: str, body: Object) -> Object:
        """Create in a collection."""
        result: Object = self.call("POST", path, body)
        return result

    def patch(self, path: str, body: Object) -> Object:
        """Merge into an object (JSON merge patch, RFC 7386)."""
        result: Object = self.call("PATCH", path, body, content_type="application/merge-patch+json")
        return result

    def delete(self, path: str, *, grace_s: int | None = None) -> None:
        """Delete an object; succeeds if it is already gone."""
        body = None if grace_s is None else {"gracePeriodSeconds": grace_s}
        try:
            self.call("DELETE", path, body)
        except ApiError as error:
            if error.status != 404:
                raise

    def watch(self, path: str, resource_version: str, timeout_s: float = 60.0) -> Generator[tuple[str, Object]]:
        """The changes in a collection from `resource_version` on, as (type, object).

        `timeout_s` without a change is an error.

        The generator has its own connection, which it closes when it ends.
        """
        joint = "&" if "?" in path else "?"
        connection = http.client.HTTPSConnection(self._host, self._port, context=self._tls, timeout=timeout_s)
        try:
            connection.request("GET", f"{path}{joint}watch=1&resourceVersion={resource_version}")
            response = connection.getresponse()
            for line in response:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    status = event["object"]
                    raise ApiError(int(status.get("code", 500)), f"watch {path}: {status.get('message', '')}")
                yield event["type"], event["object"]
        finally:
            connection.close()

    def exists(self, path: str) -> bool:
        """Whether an object exists."""
        try:
            self.get(path)
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return True


def answers_200(
    url: str, authority: Path, credentials: tuple[Path, Path] | None = None, *, containing: str = ""
) -> bool:
    """Whether an HTTPS server of the bed answers 200 with these words; no answer counts as no."""
    parts = urllib.parse.urlsplit(url)
    assert parts.hostname is not None
    context = ssl.create_default_context(cafile=str(authority))
    if credentials:
        context.load_cert_chain(*credentials)
    connection = http.client.HTTPSConnection(parts.hostname, parts.port or 443, context=context, timeout=5)
    try:
        connection.request("GET", f"{parts.path}?{parts.query}")
        response = connection.getresponse()
        return response.status == 200 and containing in response.read().decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
