"""Synchronous requests for whole objects.

Commands show and send objects as the API server has them, so objects are mappings here and not the typed structs of
`baton.model`, which have only the fields that the programs use. Requests are sequential, on one connection; a missing
object becomes a sentence that names where the command looked.
"""

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator, Mapping
from types import TracebackType
from typing import Any, TypeVar

import msgspec

from baton.errors import BatonError
from baton.kube.client import MERGE_PATCH, Client
from baton.kube.errors import NotFoundError
from baton.kube.kubeconfig import Access
from baton.model.resource import Resource

Object = dict[str, Any]
_T = TypeVar("_T")

_TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


class Table(msgspec.Struct):
    """Objects as the API server prints them: the columns of `kubectl get`, and the metadata of each object."""

    class Column(msgspec.Struct):
        name: str

    class Row(msgspec.Struct):
        cells: list[Any]
        object: Object = {}

    columns: list[Column] = msgspec.field(name="columnDefinitions", default_factory=list)
    rows: list[Row] = msgspec.field(default_factory=list)

    def cell(self, row: Row, column: str) -> str:
        """The cell of a row in the named column."""
        for place, found in enumerate(self.columns):
            if found.name == column:
                return str(row.cells[place])
        raise BatonError(f"the API server's table has no column {column!r}")


class Cluster:
    """A command's connection to one API server; a context manager."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self._client = Client(access)
        self._runner = asyncio.Runner()

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.wait(self._client.close())
        self._runner.close()

    @property
    def client(self) -> Client:
        """The client, for other requests; pass the coroutines that it returns to `wait`."""
        return self._client

    def wait(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run one request and return its result."""
        return self._runner.run(work)

    def get(self, resource: Resource[Any], name: str, namespace: str | None = None) -> Object:
        return _readable(self._object("GET", resource, namespace, name))

    def list(self, resource: Resource[Any], namespace: str | None = None, *, label_selector: str = "") -> list[Object]:
        """All objects, in the server's order: by namespace and name."""
        objects: Resource[Object] = resource._replace(kind=dict)
        with _told(resource, namespace):
            found = self.wait(self._client.list_all(objects, namespace, label_selector=label_selector))
        return [_readable(item) for item in found]

    def table(self, resource: Resource[Any], namespace: str | None = None, *, label_selector: str = "") -> Table:
        """The objects as rows of text that the server has formatted."""
        selected = {"labelSelector": label_selector}
        answer = self._ask("GET", resource, namespace, parameters=selected, accept=_TABLE)
        with self._client.expecting("table"):
            return msgspec.json.decode(answer, type=Table)

    def create(self, resource: Resource[Any], body: Mapping[str, Any], namespace: str | None = None) -> Object:
        return self._object("POST", resource, namespace, body=body)

    def patch(
        self, resource: Resource[Any], name: str, body: Mapping[str, Any], namespace: str | None = None
    ) -> Object:
        """Merge some fields into an object."""
        return self._object("PATCH", resource, namespace, name, body=body, content_type=MERGE_PATCH)

    def delete(self, resource: Resource[Any], name: str, namespace: str | None = None) -> None:
        self._ask("DELETE", resource, namespace, name)

    def _object(self, *words: Any, **details: Any) -> Object:
        answer = self._ask(*words, **details)
        with self._client.expecting("object"):
            return msgspec.json.decode(answer, type=Object)

    def _ask(
        self, method: str, resource: Resource[Any], namespace: str | None, name: str = "", **details: Any
    ) -> bytes:
        with _told(resource, namespace, name):
            return self.wait(self._client.request(method, resource.path(namespace, name), **details))


def _readable(item: Object) -> Object:
    """The object without its managed fields, which are noise to people."""
    item.get("metadata", {}).pop("managedFields", None)
    return item


class MissingObjectError(BatonError):
    """The named object does not exist; `answer` is the API server's message."""

    def __init__(self, sentence: str, answer: str) -> None:
        super().__init__(sentence)
        self.answer = answer


class UnknownKindError(BatonError):
    """The cluster does not know the kind of the named object."""


class RightsError(BatonError):
    """The user may not list objects of the whole cluster, which the question requires."""


@contextlib.contextmanager
def _told(resource: Resource[Any], namespace: str | None, name: str = "") -> Iterator[None]:
    """Turns a 404 into a sentence that says where Baton looked."""
    try:
        yield
    except NotFoundError as error:
        raise _not_found(resource, name, namespace, error) from None


def _not_found(resource: Resource[Any], name: str, namespace: str | None, error: NotFoundError) -> BatonError:
    """The sentence for a 404: the object or its whole kind does not exist in the cluster."""
    if not name or "could not find the requested resource" in error.message or "page not found" in error.message:
        if namespace and f'namespaces "{namespace}"' in error.message:
            return MissingObjectError(f"there is no namespace {namespace}", error.message)
        return UnknownKindError(
            f"the cluster does not know {resource.plural}.{resource.group}; run `baton install --crds`"
        )
    where = f" in namespace {namespace}" if namespace else ""
    return MissingObjectError(f"there is no {resource.plural.removesuffix('s')} {name}{where}", error.message)
