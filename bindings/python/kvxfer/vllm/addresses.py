"""Where an engine's agents listen, and the address that references carry: one that other engines reach,
or the engine does not start."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.config import VllmConfig

    from kvxfer.vllm.settings import Settings

_IP = ipaddress.IPv4Address | ipaddress.IPv6Address

_OPTION = '"host" in kv_connector_extra_config'
_EVERY_ADDRESS = {4: "0.0.0.0", 6: "::"}
_LOOPBACK_NAMES = ("localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback")


@dataclass(frozen=True)
class OwnAddress:
    """Both are numeric, an IPv6 address without brackets."""

    listen: str
    reached: str
    """By other engines."""
    reached_port: int = 0
    """0: the one that is listened at."""

    def of(self, listen_address: str) -> str:
        """What references carry of an agent that says that it listens there."""
        port = self.reached_port or int(listen_address.rpartition(":")[2])
        return with_port(self.reached, port)


@dataclass(frozen=True)
class _Named:
    """A host, and the option that names it."""

    option: str
    host: str

    def bad(self, why: str, remedy: str) -> ValueError:
        return ValueError(f"KvxferConnector: {self.option} is {self.host!r}, {why}: {remedy}")


_REMEDY = f"set {_OPTION}, or VLLM_HOST_IP, to an address that other engines reach"


def own_address(settings: Settings, config: VllmConfig) -> OwnAddress:
    """ValueError names the option whose address no other engine would reach, or not all that there
    are."""
    advertised, port = _advertised(settings.agent_options, config)
    named = _named_host(settings, advertised)
    listen = _resolved(named)
    _check_meant(named, listen)
    if advertised is None and listen.is_unspecified:
        advertised = _Named("the default route", _route_source())
        if not advertised.host:
            raise named.bad(
                "every address of this host, of which none has a route to other hosts",
                f'{_REMEDY}, or set "advertise" in "agent_options" to one',
            )
    spoken = named if advertised is None else advertised
    reached = _resolved(spoken)
    _check_reachable(spoken, reached, config)
    return OwnAddress(str(listen), str(reached), port)


def is_loopback(host: str) -> bool:
    """An address or a name that means this host alone. May ask the resolver."""
    try:
        return _lookup(host).is_loopback
    except OSError:
        return False


def with_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _named_host(settings: Settings, advertised: _Named | None) -> _Named:
    if settings.host:
        return _Named(_OPTION, settings.host)
    if host := os.environ.get("VLLM_HOST_IP", ""):
        return _Named("VLLM_HOST_IP", host)
    if advertised is not None:
        # Whichever address of this host it leads to; there may be no default route to tell.
        return _Named("the default", _EVERY_ADDRESS[_resolved(advertised).version])
    if host := _route_source():
        return _Named("the default route", host)
    raise ValueError(f"KvxferConnector: this host has no route to any other: {_REMEDY}")


def _advertised(options: Mapping[str, Any], config: VllmConfig) -> tuple[_Named | None, int]:
    """What peers are told to connect to, where that is not the address that is listened at."""
    option, text = '"advertise" in "agent_options"', options.get("advertise", "")
    if not text:
        option, text = "KVXFER_ADVERTISE", os.environ.get("KVXFER_ADVERTISE", "")
    if not text:
        return None, 0
    host, port = _split(str(text))
    named = _Named(option, host)
    if port < 0 or not host:
        raise _Named(option, str(text)).bad("no host, and no host:port", "name an address")
    if port and (others := _other_workers(config)):
        raise _Named(option, str(text)).bad(
            f"with one port for all workers ({others})", "leave the port out"
        )
    return named, port


def _other_workers(config: VllmConfig) -> str:
    """Empty, or the option by which other workers are started with the same options as this one."""
    parallel = config.parallel_config
    sizes = {"tensor_parallel_size": 1}
    if not getattr(parallel, "data_parallel_external_lb", False):  # where each has a command of its own
        # vLLM makes each rank of a dense model an engine whose data_parallel_size is 1.
        sizes |= {"data_parallel_size": 1, "data_parallel_index": 0}
    for option, alone in sizes.items():
        if (size := getattr(parallel, option, alone)) > alone:
            return f"{option} is {size}"
    return ""


def _split(text: str) -> tuple[str, int]:
    """A port of -1: none that there can be."""
    host, port = text, ""
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest[1:] if rest.startswith(":") else rest
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    if not port:
        return host, 0
    return host, int(port) if port.isdecimal() and 0 < int(port) < 65536 else -1


def _check_reachable(named: _Named, address: _IP, config: VllmConfig) -> None:
    if address.is_unspecified:
        raise named.bad("which cannot be connected to", "name an address of this host")
    if address.is_link_local and address.version == 6:
        raise named.bad("an address within one link, which other hosts may not have", _REMEDY)
    _check_meant(named, address)
    other = _other_host(config)
    if address.is_loopback and other:
        raise named.bad(f"and this engine has ranks on other hosts ({other})", _REMEDY)


def _check_meant(named: _Named, address: _IP) -> None:
    """Loopback is right where somebody has written it, not where a name happens to resolve to it."""
    if address.is_loopback and not (_is_numeric(named.host) or _is_loopback_name(named.host)):
        raise named.bad(
            f"which is {address} here, an address of this host alone",
            f'{_REMEDY}; where all engines run on this host, to "127.0.0.1"',
        )


def _is_loopback_name(host: str) -> bool:
    return host.lower() in _LOOPBACK_NAMES or host.lower().endswith(".localhost")


def _other_host(config: VllmConfig) -> str:
    parallel = config.parallel_config
    nodes = getattr(parallel, "nnodes", 1)
    if nodes > 1:
        return f"nnodes is {nodes}"
    for option in ("master_addr", "data_parallel_master_ip"):
        host = getattr(parallel, option, "")
        if host and not _is_this_host(host):
            return f"{option} is {host}"
    return ""


def _is_this_host(host: str) -> bool:
    if _is_loopback_name(host):
        return True
    try:
        address = _lookup(host)
    except OSError:
        return False
    return address.is_loopback or address.is_unspecified or _can_be_bound(address)


def _can_be_bound(address: _IP) -> bool:
    """To one of this host's own alone. A datagram socket that is bound takes no port of others."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True


def _resolved(named: _Named) -> _IP:
    try:
        return _lookup(named.host)
    except OSError as error:
        raise named.bad(f"which cannot be resolved ({error})", _REMEDY) from error


def _lookup(host: str, flags: int = 0) -> _IP:
    """As the agent resolves it: the first. OSError: it is neither an address nor a known name."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=flags)
    except UnicodeError as error:
        raise OSError(f"no name of a host: {error}") from error
    address = ipaddress.ip_address(str(found[0][4][0]))
    mapped = getattr(address, "ipv4_mapped", None)
    return address if mapped is None else mapped


def _is_numeric(host: str) -> bool:
    try:
        _lookup(host, socket.AI_NUMERICHOST)
    except OSError:
        return False
    return True


def _route_source() -> str:
    """Connecting a datagram socket sends nothing; it asks the kernel for the route."""
    for family, elsewhere in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((elsewhere, 9))
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return ""
