"""The exceptions of kvxfer, one for each kind of error of the library.

Each carries the text of the library's status: what happened, to whom (peer, rail, region) and the
remedy. Where Python has an exception for the same thing, it is a base too, so that
``except TimeoutError`` and ``except ConnectionError`` work as one would think.
"""

from __future__ import annotations


class Error(Exception):
    """Base of all errors of kvxfer. ``code`` is the kind, as the C++ interface names it. ``reason``,
    where a program may want to act on more than the code: "address_in_use", "peer_restarted" (another
    incarnation is where the peer was), "peer_gone" (its process has ended); else empty."""

    code = "UNKNOWN"
    reason = ""


class InvalidArgument(Error, ValueError):
    """An argument is wrong; the text names it and what was expected."""

    code = "INVALID_ARGUMENT"


class NotFound(Error, LookupError):
    """No such peer, region, cache, lease, backend."""

    code = "NOT_FOUND"


class AlreadyExists(Error):
    """A name that is taken, or was used before."""

    code = "ALREADY_EXISTS"


class PermissionDenied(Error, PermissionError):
    """The region was registered without the right that this needs."""

    code = "PERMISSION_DENIED"


class ResourceExhausted(Error):
    """Memory, descriptors, or a bound of ``Agent``'s options ran out."""

    code = "RESOURCE_EXHAUSTED"


class FailedPrecondition(Error):
    """Not possible as things are: peer restarted, region gone, wrong version, forked child."""

    code = "FAILED_PRECONDITION"


class Closed(FailedPrecondition):
    """The agent was closed, or is being drained."""


class LeaseRefused(FailedPrecondition):
    """The owner of blocks refused a read under a lease. ``refusal``: "unknown" (not granted yet, or
    forgotten), "other_contents", "other_blocks", "ended" (consumed, released, expired, or it took
    longer than it was held), "busy" (the owner has too many such reads at once; try again)."""

    def __init__(self, text: str, refusal: str) -> None:
        super().__init__(text)
        self.refusal = refusal

    def __reduce__(self) -> tuple[type[LeaseRefused], tuple[str, str]]:
        return type(self), (str(self), self.refusal)


class PeerLost(Error, ConnectionError):
    """The peer, or every path to it, is gone."""

    code = "UNAVAILABLE"


class DeadlineExceeded(Error, TimeoutError):
    """The transfer ended by its deadline; or fetching metadata took too long."""

    code = "DEADLINE_EXCEEDED"


class TimedOut(Error, TimeoutError):
    """The time-out of a call that waits passed. What it waited for goes on: call it again."""

    code = "OUT_OF_RANGE"


class StillActive(TimedOut):
    """The time-out of ``Transfer.wait`` passed; the transfer goes on."""


class Cancelled(Error):
    """The transfer was cancelled, or its agent was closed."""

    code = "CANCELLED"


class Aborted(Error):
    """Given up: a request of which a part was refused, a connection that was cut."""

    code = "ABORTED"


class Unimplemented(Error, NotImplementedError):
    """Not built, or not for this memory or host."""

    code = "UNIMPLEMENTED"


class Internal(Error):
    """A bug, of kvxfer or of what is beneath it; please report it."""

    code = "INTERNAL"


BY_CODE = {
    kind.code: kind
    for kind in (
        InvalidArgument,
        NotFound,
        AlreadyExists,
        PermissionDenied,
        ResourceExhausted,
        FailedPrecondition,
        PeerLost,
        DeadlineExceeded,
        TimedOut,
        Cancelled,
        Aborted,
        Unimplemented,
        Internal,
    )
}
