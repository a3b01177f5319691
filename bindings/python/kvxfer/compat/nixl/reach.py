"""Whether agents on other hosts can connect to this one, and what to set where they cannot."""

from typing import Any

from . import environment
from .host import is_address, is_loopback, own_address

REMEDY = (
    "agents listen on loopback unless told otherwise: set KVXFER_LISTEN=HOST:0 on both sides, "
    "with an address of the host that the other reaches (there is no authentication yet)"
)
# Where an agent can be reached too, if these name an address.
_ALSO = ("TCP_ADDRESSES", "VERBS_LISTEN", "LIBFABRIC_LISTEN", "UCX_LISTEN")


def _host(text: str) -> str:
    """Of "host", "host:port", "[v6]:port", and of an IPv6 address alone."""
    alone = ":" not in text or (text.count(":") > 1 and not text.startswith("["))
    return text if alone else environment.host_of(text)


def _is_local(text: str) -> bool:
    return text == "lo" or is_loopback(_host(text))


def only_on_loopback(agent: Any) -> str:
    """The address that peers of kvxfer's agent learn, if it is of use on this host alone."""
    listens = agent.listen_address or environment.own("LISTEN") or "127.0.0.1:0"
    address = environment.own("ADVERTISE") or listens
    others = [each for name in _ALSO for each in environment.own(name).split(",") if each]
    return address if all(map(_is_local, (address, *others))) else ""


def _at(address: str) -> str:
    """The value to set, of an address that may not be known."""
    host = address or "ADDRESS"
    return f"[{host}]:0" if ":" in host else f"{host}:0"


def cannot_connect(name: str, address: str) -> str:
    """That agent ``name``, on another host, cannot use ``address``; and the remedy."""
    own = own_address()
    setting = f"KVXFER_LISTEN={_at(own)}"
    if environment.own("ADVERTISE"):
        setting = f"KVXFER_ADVERTISE={own or 'ADDRESS'}"
    return (
        f"agent {name!r} is on another host and cannot connect to this one, which listens on "
        f"loopback ({address}): set {setting} here (there is no authentication yet)"
    )


def remedy_there(name: str, address: str) -> str:
    """Where agent ``name`` listens on loopback, on a host that says it has ``address``."""
    if not is_address(address):
        return REMEDY
    return f"{REMEDY}; for agent {name!r} KVXFER_LISTEN={_at(address)}"
