"""What an API server may answer instead of what was asked for.

ApiError                 any answer that is not a success; `status`, `reason`, `message` are the server's
├── UnauthorizedError    401: the credentials are not accepted (any more)
├── ForbiddenError       403: RBAC says no, or the namespace is being deleted
├── NotFoundError        404
├── ConflictError        409: changed by somebody else, or exists already
├── GoneError            410: the resource version is too old; list again
├── InvalidError         422: the object is refused, by validation or by a webhook
└── ThrottledError       429 or 503 with Retry-After: later
UnreachableError         no answer at all: connection refused, cut, timed out
└── SilentError          a watch was opened, and nothing came for longer than servers are silent
"""

from http import HTTPStatus

import msgspec

from baton.errors import BatonError, UnavailableError


class ApiError(BatonError):
    """The API server said no; the sentence carries the server's own words."""

    def __init__(self, status: int, reason: str, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(f"the API server answered {status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after_s = retry_after_s


class UnauthorizedError(ApiError):
    """The credentials are not accepted, or not any more."""


class ForbiddenError(ApiError):
    """RBAC does not allow it, or the namespace is on its way out."""

    @property
    def namespace_ends(self) -> bool:
        """Whether it is refused because nothing new may come into a namespace that is being deleted."""
        return "because it is being terminated" in self.message


class NotFoundError(ApiError):
    """There is no such object, or no such resource."""


class ConflictError(ApiError):
    """Somebody else changed the object first, or it exists already."""


class GoneError(ApiError):
    """The resource version is older than what the server remembers: list again."""


class InvalidError(ApiError):
    """The object is refused."""


class ThrottledError(ApiError):
    """Not now: `retry_after_s` says when, if the server did."""


class UnreachableError(UnavailableError):
    """No answer: the request may or may not have been carried out."""


class SilentError(UnreachableError):
    """The connection is dead without knowing it, or the server waits for a version that it has not come to."""


class _Status(msgspec.Struct):
    """The part of a metav1.Status that is read; programs of ours behind a proxy say `error`."""

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
