"""The options of the connector (``kv_connector_extra_config``): what is wrong among them is refused by
name when the engine starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from kvxfer.vllm.reference import MODES
from kvxfer.vllm.supported import refuse_what_is_not_supported, why_no_push

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_OPTION = "kv_connector_extra_config"
# Of agent_options.
_OWN_OPTIONS = {
    "name": "it is made of the engine's id",
    "listen": 'set "host" and "port_range" instead',
    "serve_metadata": "engines meet by it, so it is always on",
    "backends": 'set "backends" beside it',
    "require_backends": 'set "require_backends" beside it',
    "environment": "KVXFER_* variables always count",
}


@dataclass(frozen=True)
class Settings:
    """Times in seconds."""

    mode: str = "pull"
    """How requests that this engine prefills get away: "pull": decode reads them; "push": this engine
    writes them. Decode follows what it is told."""
    host: str = ""
    """Where this engine's agents listen, and are reached unless "advertise" says otherwise; default:
    VLLM_HOST_IP, else every address where "advertise" is given, else that which the default route leaves
    from."""
    port_range: str = ""
    """ "first-last", one port a worker; default: any that is free."""
    lease: float = 30.0
    """How long computed blocks are kept for a decode engine that does not say that it still wants them;
    one that does says so three times as often."""
    timeout: float = 30.0
    """For the transfer of one request."""
    handshake_timeout: float = 5.0
    """For finding out about an engine that is met for the first time."""
    bidirectional: bool = False
    """Decode keeps the blocks of a request that has ended, answer included, for the next turn of the
    conversation; prefill reads them."""
    retries: int = 2
    """Of a read that a connection failed, within ``timeout``. A push is not repeated."""
    drain: float = 5.0
    """How long a worker that is shut down waits for what it has promised."""
    model_id: str = ""
    """Says that engines have the same weights, where vLLM's own name of the model does not."""
    backends: tuple[str, ...] = ()
    """Which of kvxfer's backends to use, tcp among them; default: what the host has."""
    require_backends: tuple[str, ...] = ()
    """Fail rather than take another path than these."""
    agent_options: Mapping[str, Any] = field(default_factory=dict)
    """Further options of kvxfer.Agent."""

    @staticmethod
    def of(config: VllmConfig) -> Settings:
        """ValueError names the option, and what it should be."""
        transfer = config.kv_transfer_config
        assert transfer is not None
        settings = _parse(transfer.kv_connector_extra_config)
        refuse_what_is_not_supported(config)
        if settings.mode == "push" and (why := why_no_push(config)):
            raise _bad("mode", f'is "push", and {why}: set "pull"')
        return settings

    def ports(self) -> list[int]:
        """To be tried in turn; 0: any. ValueError: ``port_range`` is none."""
        if not self.port_range:
            return [0]
        first, _, last = self.port_range.partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            ports = list(range(int(first), min(int(last or first), 65536) + 1))
            if ports and ports[0] > 0 and ports[-1] < 65536:
                return ports
        raise _bad("port_range", f'is {self.port_range!r}, not "first-last", from 1 to 65535')


def _parse(given: Mapping[str, Any]) -> Settings:
    known = {each.name: each for each in fields(Settings)}
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            raise _bad(name, f"is not known; there are {', '.join(sorted(known))}")
        values[name] = _checked(name, known[name].type, value)
    settings = Settings(**values)
    if settings.mode not in MODES:
        raise _bad("mode", f"is {settings.mode!r}, not one of {', '.join(MODES)}")
    for name in ("lease", "timeout", "handshake_timeout"):
        if not 0 < getattr(settings, name) <= 86400:
            raise _bad(name, "is not above 0 and at most a day, in seconds")
    if not 0 <= settings.drain <= 86400:
        raise _bad("drain", "is not from 0 to a day, in seconds")
    if not 0 <= settings.retries <= 100:
        raise _bad("retries", "is not from 0 to 100")
    if settings.backends and "tcp" not in settings.backends:
        raise _bad("backends", 'lacks "tcp", over which engines meet; to carry no block over it, '
                   'name the others in "require_backends"')  # fmt: skip
    for name, instead in _OWN_OPTIONS.items():
        if name in settings.agent_options:
            raise _bad("agent_options", f"has {name!r}: {instead}")
    settings.ports()
    return settings


def _checked(name: str, kind: Any, value: Any) -> Any:
    match kind:
        case "str" if isinstance(value, str):
            return value
        case "float" if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        case "int" if type(value) is int:
            return value
        case "bool" if isinstance(value, bool):
            return value
        case "tuple[str, ...]" if isinstance(value, list | tuple) and all(
            isinstance(each, str) for each in value
        ):
            return tuple(value)
        case "Mapping[str, Any]" if isinstance(value, dict):
            return dict(value)
    raise _bad(name, f"is {value!r}, not of type {_named(kind)}")


def _named(kind: str) -> str:
    return {
        "tuple[str, ...]": "list of texts",
        "Mapping[str, Any]": "object",
        "str": "text",
        "float": "number",
        "int": "integer",
        "bool": "true or false",
    }[kind]


def _bad(name: str, why: str) -> ValueError:
    return ValueError(f"KvxferConnector: {_OPTION}: {name} {why}")
