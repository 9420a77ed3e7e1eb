"""The only module that sends requests to an API server.

aiohttp transfers the bytes, and msgspec decodes only the fields that Baton reads. Every request has a deadline, counts
against an explicit rate (`qps`, `burst`), and ends in a result or in one of `baton.kube.errors`. Retrying is the
caller's decision, with one exception: after a 401, or after a certificate error, the client retries once if there may
be better credentials or if the certificate files have changed.
"""

import contextlib
from collections.abc import AsyncGenerator, Iterator, Mapping
from types import TracebackType
from typing import Any, NamedTuple

import aiohttp
import msgspec

from baton import __version__
from baton.errors import BatonError
from baton.kube import errors
from baton.kube.credentials import Credentials, Tls, in_cluster
from baton.kube.decoding import Page, WatchEvent, decode_page, event_decoder
from baton.kube.errors import GoneError, SilentError, UnauthorizedError, UnreachableError
from baton.kube.kubeconfig import Access, load
from baton.kube.rate import RateLimit
from baton.kube.sockets import Sockets
from baton.model.resource import Resource, T

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

WHOLE = 0
"""The limit for a list in one piece, without pages."""
_LINE_LIMIT = 16 * 1024 * 1024
"""Longest accepted watch event; etcd's default limit for one object is 1.5 MiB."""
_READ_BUFFER = 1024 * 1024
"""The read buffer of one connection."""


class _Request(NamedTuple):
    """One outgoing request."""

    method: str
    path: str
    timeout: aiohttp.ClientTimeout
    parameters: Mapping[str, str] = {}
    data: bytes | None = None
    content_type: str = ""
    accept: str = ""


class _DistrustError(UnreachableError):
    """The client or the server rejects the certificate of the other."""


class Client:
    """Typed requests to one API server. Use it as an async context manager, or call `close()`."""

    def __init__(
        self,
        access: Access,
        *,
        qps: float = 0,
        burst: int = 100,
        timeout_s: float = 30.0,
        connections: int = 64,
        user_agent: str = f"baton/{__version__}",
    ) -> None:
        self.access = access
        self._credentials = Credentials(access)
        self._limit = RateLimit(qps, burst)
        self._timeout_s = timeout_s
        self._agent = user_agent
        self._connections = connections
        self._session: aiohttp.ClientSession | None = None
        self._sockets = Sockets()
        self._tls = Tls(access)

    @classmethod
    def from_environment(cls, **settings: Any) -> "Client":
        """A client with the pod's service account, or outside of a pod with the kubeconfig."""
        return cls(in_cluster() or load(), **settings)

    def apart(self) -> "Client":
        """Another client of the same server, with separate connections and without a rate limit, for requests that must
        not wait behind all others."""
        return Client(self.access, timeout_s=self._timeout_s, connections=2, user_agent=self._agent)

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections, including those that wait for the server to close its side."""
        session, self._session = self._session, None
        if session is None:
            return
        await session.close()
        await self._sockets.end()

    async def get(self, resource: Resource[T], name: str, namespace: str | None = None) -> T:
        return self._object(await self.request("GET", resource.path(namespace, name)), resource)

    async def list_page(
        self,
        resource: Resource[T],
        namespace: str | None = None,
        *,
        limit: int = 500,
        continue_token: str = "",
        label_selector: str = "",
        field_selector: str = "",
        resource_version: str = "",
    ) -> Page[T]:
        """One page; `continue_token` of the answer leads to the next."""
        parameters = {
            "limit": str(limit),
            "continue": continue_token,
            "labelSelector": label_selector,
            "fieldSelector": field_selector,
            "resourceVersion": "" if continue_token else resource_version,
        }
        body = await self.request("GET", resource.path(namespace), parameters=parameters)
        with self.expecting("list"):
            return decode_page(body, resource.kind)

    async def list_all(self, resource: Resource[T], namespace: str | None = None, **selectors: str) -> list[T]:
        """Every object, page by page; in one piece if the server's list expires between two pages."""
        limit, token = 500, ""
        items: list[T] = []
        while True:
            try:
                page = await self.list_page(resource, namespace, limit=limit, continue_token=token, **selectors)
            except GoneError:
                if not token:
                    raise
                limit, token, items = WHOLE, "", []
                continue
            items += page.items
            token = page.continue_token
            if not token:
                return items

    async def create(self, resource: Resource[T], body: Any, namespace: str | None = None) -> T:
        answer = await self.request("POST", resource.path(namespace), body=body)
        return self._object(answer, resource)

    async def patch(
        self,
        resource: Resource[T],
        name: str,
        body: Any,
        namespace: str | None = None,
        *,
        subresource: str | None = None,
        content_type: str = MERGE_PATCH,
        field_manager: str = "",
        patient: bool = False,
    ) -> T:
        """Change some fields. The content type may select server-side apply, which needs a `field_manager`."""
        forced = {"force": "true"} if content_type == APPLY_PATCH else {}
        answer = await self.request(
            "PATCH",
            resource.path(namespace, name, subresource),
            parameters={"fieldManager": field_manager, **forced},
            body=body,
            content_type=content_type,
            patient=patient,
        )
        return self._object(answer, resource)

    async def replace(
        self,
        resource: Resource[T],
        name: str,
        body: Any,
        namespace: str | None = None,
        *,
        subresource: str | None = None,
        patient: bool = False,
    ) -> T:
        answer = await self.request("PUT", resource.path(namespace, name, subresource), body=body, patient=patient)
        return self._object(answer, resource)

    async def delete(
        self,
        resource: Resource[T],
        name: str,
        namespace: str | None = None,
        *,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Delete one object; `options` is a DeleteOptions body (grace period, preconditions, propagation)."""
        await self.request("DELETE", resource.path(namespace, name), body=options)

    async def watch(
        self,
        resource: Resource[T],
        namespace: str | None = None,
        *,
        resource_version: str,
        label_selector: str = "",
        field_selector: str = "",
        silence_s: float = 90.0,
        server_timeout_s: int = 290,
    ) -> AsyncGenerator[list[WatchEvent[T]], None]:
        """Events after `resource_version`, bookmarks included, until the server ends the stream.

        Events that arrive together are returned together: waking the loop for each would cost more than decoding it.
        The server sends a bookmark about every minute; after `silence_s` without a byte the watch ends in a
        SilentError, which is an UnreachableError.
        """
        parameters = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "labelSelector": label_selector,
            "fieldSelector": field_selector,
            "timeoutSeconds": str(server_timeout_s),
        }
        timeout = aiohttp.ClientTimeout(total=None, connect=self._timeout_s, sock_read=silence_s)
        response = await self._send(_Request("GET", resource.path(namespace), timeout, parameters))
        decode = event_decoder(resource.kind)
        rest = b""
        try:
            while chunk := await response.content.readany():
                *lines, rest = (rest + chunk).split(b"\n") if b"\n" in chunk else (rest + chunk,)
                if len(rest) > _LINE_LIMIT:
                    raise UnreachableError(f"the watch of {resource.plural} sent an event of more than 16 MiB")
                if lines:
                    yield [decode(line) for line in lines if line]
        except TimeoutError:
            raise SilentError(f"the watch of {resource.plural} was silent for {silence_s:g} s") from None
        except (aiohttp.ClientError, ConnectionError, ValueError) as error:
            if isinstance(error, msgspec.DecodeError):
                raise
            raise UnreachableError(f"the watch of {resource.plural} was cut: {error or type(error).__name__}") from None
        finally:
            response.close()

    async def request(
        self,
        method: str,
        path: str,
        *,
        parameters: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        accept: str = "",
        timeout_s: float | None = None,
        patient: bool = False,
    ) -> bytes:
        """Send one request and return the body of a successful answer, in another form if `accept` asks for it.

        While `qps` makes requests wait, a `patient` request lets others go first.
        """
        await self._limit.wait(patient=patient)
        data = body if isinstance(body, bytes) else msgspec.json.encode(body) if body is not None else None
        timeout = aiohttp.ClientTimeout(total=timeout_s or self._timeout_s)
        try:
            response = await self._send(_Request(method, path, timeout, parameters or {}, data, content_type, accept))
            async with response:
                return await response.read()
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            raise UnreachableError(_no_answer(self.access.server, error)) from None

    def _object(self, answer: bytes, resource: Resource[T]) -> T:
        with self.expecting(resource.kind.__name__):
            decoded: T = msgspec.json.decode(answer, type=resource.kind)
            return decoded

    @contextlib.contextmanager
    def expecting(self, what: str) -> Iterator[None]:
        """Treat a successful answer of another type as no answer: it comes from a proxy, not from the API server."""
        try:
            yield
        except msgspec.DecodeError as error:
            said = f"the response is not a Kubernetes {what}: {error}"
            raise UnreachableError(f"{self.access.server} does not answer as an API server: {said}") from None

    async def _send(self, request: _Request) -> aiohttp.ClientResponse:
        """The answer, with its body not read yet. Rejected credentials and certificates are renewed once."""
        credentials = await self._authorized()
        try:
            return await self._send_once(request, credentials)
        except UnauthorizedError:
            renewable, renewed = self._credentials.refused(credentials), self._tls.refused()
            if not (renewable or renewed):
                raise
        except _DistrustError:
            if not self._tls.refused():
                raise
        return await self._send_once(request, await self._authorized())

    async def _authorized(self) -> Mapping[str, str]:
        try:
            return await self._credentials.headers()
        except BatonError as error:  # a plugin or a file that fails now may work for the next request
            raise UnreachableError(str(error)) from None

    async def _send_once(self, request: _Request, credentials: Mapping[str, str]) -> aiohttp.ClientResponse:
        headers = dict(credentials)
        if request.accept:
            headers["Accept"] = request.accept
        if request.data is not None and request.content_type:
            headers["Content-Type"] = request.content_type
        query = {key: value for key, value in request.parameters.items() if value}
        try:
            context = self._tls.context(self._credentials.pair)
            response = await self._open().request(
                request.method,
                self.access.server + request.path,
                params=query,
                data=request.data,
                headers=headers,
                timeout=request.timeout,
                ssl=context if context is not None else True,
                server_hostname=self.access.tls_server_name,
                proxy=self.access.proxy_url,
            )
            if response.status < 400:
                return response
            async with response:
                said = await response.read()
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            kind = _DistrustError if isinstance(error, aiohttp.ClientSSLError) else UnreachableError
            raise kind(_no_answer(self.access.server, error)) from None
        raise errors.from_answer(response.status, said, response.headers.get("Retry-After"))

    def _open(self) -> aiohttp.ClientSession:
        """The session; the first request opens it, so that a client can be created outside of a running loop."""
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=self._connections, socket_factory=self._sockets.make)
            self._session = aiohttp.ClientSession(
                connector=connector,
                headers=[("User-Agent", self._agent), ("Accept", "application/json"), *self.access.impersonation],
                read_bufsize=_READ_BUFFER,
            )
        return self._session


def _no_answer(server: str, error: BaseException) -> str:
    what = "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
    return f"the API server {server} does not answer: {what}"
