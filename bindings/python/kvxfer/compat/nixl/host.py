"""The devices and addresses of this host, as the kernel names them."""

import fcntl
import ipaddress
import os
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

_AMAZON = "0x1d0f"
_SIOCGIFADDR = 0x8915


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


@dataclass(frozen=True)
class Host:
    rdma: tuple[str, ...] = ()
    """Devices for kvxfer's backend verbs."""
    efa: tuple[str, ...] = ()
    """Devices for libfabric."""
    interfaces: tuple[str, ...] = ()

    @classmethod
    def here(cls, root: Path = Path("/sys/class")) -> "Host":
        devices = _names(root / "infiniband")
        efa = [d for d in devices if _text(root / "infiniband" / d / "device/vendor") == _AMAZON]
        rdma = [d for d in devices if d not in efa]
        return cls(tuple(rdma), tuple(efa), tuple(_names(root / "net")))


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if fnmatchcase(name, pattern)]


def address_of(interface: str) -> str:
    """Its IPv4 address. Empty: it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            asked = struct.pack("256s", interface.encode()[:15])
            return socket.inet_ntoa(fcntl.ioctl(sock, _SIOCGIFADDR, asked)[20:24])
        except OSError:
            return ""


def own_address() -> str:
    """That of the default route. Empty: there is none."""
    for family, elsewhere in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            try:
                sock.connect((elsewhere, 9))  # sends nothing
                return str(sock.getsockname()[0])
            except OSError:
                continue
    return ""


def _parsed(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None


def is_address(text: str) -> bool:
    return _parsed(text) is not None


def is_loopback(host: str) -> bool:
    """Of an address, or of the names that are always loopback."""
    if host == "localhost" or host.endswith((".localhost", "ip6-localhost", "ip6-loopback")):
        return True
    address = _parsed(host)
    address = getattr(address, "ipv4_mapped", None) or address
    return address is not None and address.is_loopback


def machine() -> str:
    """Equal for two processes that reach each other over loopback."""
    try:
        network = os.readlink("/proc/self/ns/net")
    except OSError:
        network = ""
    return _text(Path("/proc/sys/kernel/random/boot_id")) + network
