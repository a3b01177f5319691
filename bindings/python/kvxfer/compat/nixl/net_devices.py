"""The devices of UCX_NET_DEVICES, and the options of kvxfer that choose the same ones.

UCX has one list for all networks: a list of RDMA ports is without TCP, one of interfaces without
RDMA. Pure, but for the address of an interface in what is said."""

from dataclasses import dataclass, field

from .host import Host, address_of, is_loopback, matching

NETWORKS = ("verbs", "libfabric", "tcp")


@dataclass
class Devices:
    left_out: set[str] = field(default_factory=set)
    """Backends without a device of the list."""
    options: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    """By backend."""
    problems: list[str] = field(default_factory=list)


@dataclass
class _Found:
    """What tokens of the list are, here."""

    ports: list[str] = field(default_factory=list)
    efa: list[str] = field(default_factory=list)
    interfaces: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)

    @property
    def any(self) -> bool:
        return bool(self.ports or self.efa or self.interfaces)


def split(value: str) -> list[str]:
    return [token.strip() for token in value.split(",") if token.strip()]


def _find(tokens: list[str], host: Host) -> _Found:
    found = _Found()
    for token in tokens:
        device = token.partition(":")[0]
        efa, interfaces = matching(device, host.efa), matching(token, host.interfaces)
        if matching(device, host.rdma):
            found.ports.append(token)
        found.efa += efa
        found.interfaces += interfaces
        if not efa and not interfaces and token not in found.ports:
            found.absent.append(token)
    found.interfaces = list(dict.fromkeys(found.interfaces))
    found.efa = list(dict.fromkeys(found.efa))
    return found


def _absent(found: _Found, host: Host) -> list[str]:
    if not found.absent:
        return []
    here = ", ".join((*host.rdma, *host.efa, *host.interfaces))
    absent = ", ".join(found.absent)
    own = "KVXFER_VERBS_DEVICES, KVXFER_LIBFABRIC_DOMAINS and KVXFER_TCP_ADDRESSES"
    return [f"this host has no {absent} (it has {here}); kvxfer's own lists are {own}"]


def _domains(efa: list[str]) -> list[str]:
    return [f"{device}-rdm" for device in efa]


def _all_but(tokens: list[str], host: Host) -> Devices:
    found = _find(tokens, host)
    made = Devices(problems=_absent(found, host))
    if found.ports:
        made.options["verbs"] = {"devices": [f"^{port}" for port in found.ports]}
    if found.efa:
        others = [device for device in host.efa if device not in found.efa]
        if others:
            made.options["libfabric"] = {"domains": _domains(others)}
        else:
            made.left_out.add("libfabric")
    if found.interfaces:
        others = [name for name in host.interfaces if name not in found.interfaces]
        made.problems.append(
            "kvxfer's tcp takes the interface that the route leads to; "
            f"KVXFER_TCP_ADDRESSES={','.join(others)} names those to use"
        )
    return made


def _tcp(found: _Found, on_loopback: bool, made: Devices) -> None:
    """Naming an interface does not open it: nobody is authenticated yet."""
    address = address_of(found.interfaces[0])
    if not on_loopback or all(is_loopback(address_of(name)) for name in found.interfaces):
        made.options["tcp"] = {"addresses": found.interfaces}
        return
    made.problems.append(
        "agents listen on loopback, and this does not open another interface; set "
        f"KVXFER_LISTEN={address or 'ADDRESS'}:0 ({found.interfaces[0]}'s address)"
    )


def map_devices(value: str, host: Host, on_loopback: bool) -> Devices:
    """A value of UCX_NET_DEVICES: "mlx5_0:1,mlx5_1:1", "eth0", "^lo", "all". ``on_loopback``:
    KVXFER_LISTEN names no other address."""
    value = value.strip()
    if value.startswith("^"):
        return _all_but(split(value[1:]), host)
    tokens = split(value)
    if "all" in tokens:
        return Devices()
    found = _find(tokens, host)
    made = Devices(problems=_absent(found, host))
    if not found.any:
        return made
    if found.ports:
        made.options["verbs"] = {"devices": found.ports}
    if found.efa:
        made.options["libfabric"] = {"domains": _domains(found.efa)}
    if found.interfaces:
        _tcp(found, on_loopback, made)
    named = {"verbs": found.ports, "libfabric": found.efa, "tcp": found.interfaces}
    made.left_out = {backend for backend in NETWORKS if not named[backend]}
    return made
