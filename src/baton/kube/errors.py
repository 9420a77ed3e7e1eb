"""The errors of a request to an API server.

ApiError                 any answer that is not a success; `status`, `reason`, `message` are the server's
├── UnauthorizedError    401: the credentials are not accepted (any more)
├── ForbiddenError       403: RBAC says no, or the namespace is being deleted
├── NotFoundError        404
├── ConflictError        409: changed meanwhile, or exists already
├── GoneError            410: the resource version is too old; list again
├── InvalidError         422: validation or a webhook rejected the object
└── ThrottledError       429 or 503 with Retry-After: later
UnreachableError         no answer at all: connection refused, cut, timed out
└── SilentError          a watch received nothing for longer than servers are silent
"""

from http import HTTPStatus

import msgspec

from baton.errors import BatonError, UnavailableError


class ApiError(BatonError):
    """The API server refused the request; the sentence contains the server's message."""

    def __init__(self, status: int, reason: str, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(f"the API server answered {status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after_s = retry_after_s


class UnauthorizedError(ApiError):
    """The credentials are not accepted, or no longer."""


class ForbiddenError(ApiError):
    """RBAC does not allow the request, or the namespace is being deleted."""

    @property
    def namespace_ends(self) -> bool:
        """Whether the reason is that the namespace is being deleted and accepts no new objects."""
        return "because it is being terminated" in self.message


class NotFoundError(ApiError):
    """The object or the resource does not exist."""


class ConflictError(ApiError):
    """The object changed meanwhile, or it exists already."""


class GoneError(ApiError):
    """The server no longer has the resource version: list again."""


class InvalidError(ApiError):
    """The object is rejected."""


class ThrottledError(ApiError):
    """The server is busy; `retry_after_s` is when to retry, if the server said so."""


class UnreachableError(UnavailableError):
    """No answer: the request may or may not have been carried out."""


class SilentError(UnreachableError):
    """The connection is dead without an error, or the server waits for a version that it has not reached."""


class _Status(msgspec.Struct):
    """The fields of a metav1.Status that are read; Baton's programs behind a proxy answer with `error`."""

    code: int = 0
    reason: str = ""
    message: str = ""
    error: str = ""


_BY_STATUS: dict[int, type[ApiError]] = {
    HTTPStatus.UNAUTHORIZED: UnauthorizedError,
    HTTPStatus.FORBIDDEN: ForbiddenError,
    HTTPStatus.NOT_FOUND: NotFoundError,
    HTTPStatus.CONFLICT: ConflictError,
    HTTPStatus.GONE: GoneError,
    HTTPStatus.UNPROCESSABLE_ENTITY: InvalidError,
    HTTPStatus.TOO_MANY_REQUESTS: ThrottledError,
}


def from_answer(status: int, body: bytes, retry_after: str | None = None) -> ApiError:
    """The error for an answer; the body is a Status object from an API server and anything from a proxy."""
    try:
        said = msgspec.json.decode(body, type=_Status)
    except msgspec.DecodeError:
        said = _Status(message=body[:200].decode(errors="replace").strip())
    code = said.code or status
    kind = _BY_STATUS.get(code, ApiError)
    later: float | None = None
    if retry_after is not None and retry_after.isdigit():
        later = float(retry_after)
        if code == HTTPStatus.SERVICE_UNAVAILABLE:
            kind = ThrottledError
    return kind(code, said.reason or _phrase(code), said.message or said.error, later)


def _phrase(code: int) -> str:
    try:
        return HTTPStatus(code).phrase
    except ValueError:
        return "an unknown status"
