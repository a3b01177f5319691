"""NIXL's status codes and exceptions, and what becomes of kvxfer's.

As in NIXL each exception derives from Exception alone, and its text begins with the name of the
status code; what happened follows, which NIXL does not say.
"""

from kvxfer import _errors


class nixlNotPostedError(Exception):
    """The transfer was never posted."""


class nixlInvalidParamError(Exception):
    """An argument is wrong, or does not go with another."""


class nixlBackendError(Exception):
    """kvxfer refused or failed; the text has its reason."""


class nixlNotFoundError(Exception):
    """No such agent, backend or handle, or memory that is not registered there."""


class nixlMismatchError(Exception):
    """Bytes that are not metadata of this drop-in, or are damaged."""


class nixlNotAllowedError(Exception):
    """Not possible as things are, such as metadata of a restarted agent that is still known."""


class nixlRepostActiveError(Exception):
    """The transfer is still under way."""


class nixlUnknownError(Exception):
    """None of the others."""


class nixlNotSupportedError(Exception):
    """Not offered by the backend."""


class nixlRemoteDisconnectError(Exception):
    """The remote agent is gone, or cannot be reached."""


class nixlCancelledError(Exception):
    """The transfer was cancelled."""


class nixlNoTelemetryError(Exception):
    """Telemetry was not switched on."""


CODES = {
    nixlNotPostedError: "NIXL_ERR_NOT_POSTED",
    nixlInvalidParamError: "NIXL_ERR_INVALID_PARAM",
    nixlBackendError: "NIXL_ERR_BACKEND",
    nixlNotFoundError: "NIXL_ERR_NOT_FOUND",
    nixlMismatchError: "NIXL_ERR_MISMATCH",
    nixlNotAllowedError: "NIXL_ERR_NOT_ALLOWED",
    nixlRepostActiveError: "NIXL_ERR_REPOST_ACTIVE",
    nixlUnknownError: "NIXL_ERR_UNKNOWN",
    nixlNotSupportedError: "NIXL_ERR_NOT_SUPPORTED",
    nixlRemoteDisconnectError: "NIXL_ERR_REMOTE_DISCONNECT",
    nixlCancelledError: "NIXL_ERR_CANCELED",
    nixlNoTelemetryError: "NIXL_ERR_NO_TELEMETRY",
}

# A restarted peer is refused as FailedPrecondition, in these words.
_RESTARTED = ("restarted", "new incarnation", "removed or replaced")


def nixl_error(kind: type[Exception], what: str) -> Exception:
    """An exception of that class, with the text that they all have."""
    return kind(f"{CODES[kind]}: {what}")


def from_kvxfer(error: Exception, hint: str = "") -> Exception:
    """NIXL's exception for one of kvxfer's, and for the end of a transfer. ``hint``: what may be
    behind it, if the peer was not reached."""
    text = str(error)
    kind: type[Exception] = nixlBackendError
    if isinstance(error, _errors.PeerLost):
        kind = nixlRemoteDisconnectError
    elif isinstance(error, _errors.FailedPrecondition):
        if any(word in text for word in _RESTARTED):
            kind = nixlRemoteDisconnectError
    elif isinstance(error, _errors.Cancelled):
        kind = nixlCancelledError
    elif isinstance(error, _errors.InvalidArgument):
        kind = nixlInvalidParamError
    elif isinstance(error, _errors.NotFound):
        kind = nixlNotFoundError
    elif isinstance(error, _errors.PermissionDenied):
        kind = nixlNotAllowedError
    elif isinstance(error, _errors.Unimplemented):
        kind = nixlNotSupportedError
    if hint and kind in (nixlBackendError, nixlRemoteDisconnectError):
        text = f"{text}; {hint}"
    return nixl_error(kind, text)
