"""The options of kvxfer's agent that NIXL's settings ask for: variables of UCX, and parameters of
the backend that is created. What kvxfer has no option for is warned of once in a process."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from . import environment
from .host import Host, is_loopback
from .logs import logger, warn_once
from .net_devices import map_devices, split
from .transports import ALL, map_transports

# Where UCX is what NIXL would use: elsewhere its variables do nothing in NIXL either.
_OVER_UCX = ("UCX", "UCX_MO")
# Of RDMA ports: kvxfer's option of verbs, and the lowest and highest value.
_NUMBERS = {
    "UCX_IB_GID_INDEX": ("gid_index", 0, 255),
    "UCX_IB_SL": ("service_level", 0, 15),
    "UCX_IB_TRAFFIC_CLASS": ("traffic_class", 0, 255),
    "UCX_IB_PKEY": ("p_key", 1, 0xFFFF),
}
# How UCX reports and manages its own memory; vLLM sets some of them itself.
_INTERNAL = ("LOG_", "RCACHE_", "MEM_", "STATS_", "VFS_", "MODULE", "HANDLE_ERRORS", "PROTO_INFO")
# kvxfer has threads of its own, as docs/nixl.md says; programs set these whether asked to or not.
_THREADS = ("num_threads", "num_workers", "thread_count", "num_cpus")
# kvxfer's own lists of devices, by backend.
_OWN_DEVICES = {
    "verbs": "VERBS_DEVICES",
    "libfabric": "LIBFABRIC_DOMAINS",
    "tcp": "TCP_ADDRESSES",
}
_DEVICE_LISTS = ("device_list", "ucx_devices")


class _Setting(NamedTuple):
    name: str
    value: str

    def __str__(self) -> str:
        return f"{self.name}={self.value}"


def _warn(setting: _Setting, problems: list[str]) -> None:
    if problems:
        warn_once(str(setting), f"{setting}: {'; '.join(problems)}")


@dataclass
class Settings:
    """For one agent."""

    left_out: set[str] = field(default_factory=set)
    sections: dict[str, dict[str, Any]] = field(default_factory=dict)
    applied: list[str] = field(default_factory=list)
    """The settings that are behind these."""

    def options(self, host: Host) -> dict[str, Any]:
        """Keyword arguments of kvxfer.Agent."""
        # libfabric is one of the default backends only if there is a device for it.
        out = [b for b in ALL if b in self.left_out and (b != "libfabric" or host.efa)]
        sections = {name: made for name, made in self.sections.items() if name not in out}
        asked: dict[str, Any] = {"backends": [f"^{name}" for name in out]} if out else {}
        return asked | ({"backend": sections} if sections else {})

    def hint(self) -> str:
        """For an error of an agent with these options. Empty: there are none."""
        if not self.applied:
            return ""
        asked = ", ".join(dict.fromkeys(self.applied))
        return f" (asked for by {asked}; KVXFER_BACKENDS goes before them)"


class _Reader:
    """Adds to the settings what one source after another asks for."""

    def __init__(self, host: Host) -> None:
        self.settings = Settings()
        self._host = host
        self._own_backends = split(environment.own("BACKENDS"))

    @property
    def over_ucx(self) -> bool:
        """KVXFER_BACKENDS names kvxfer's backend ucx, whose UCX reads its own variables."""
        return "ucx" in self._own_backends

    def _leave_out(self, setting: _Setting, backends: set[str]) -> None:
        backends = backends - set(split(environment.own("REQUIRE_BACKENDS")))
        if environment.own("SERVE_METADATA") == "1":
            backends -= {"tcp"}
        if not backends:
            return
        if self._own_backends:
            logger.info("%s chooses no backends, for KVXFER_BACKENDS is set", setting)
            return
        self.settings.left_out |= backends
        self.settings.applied.append(str(setting))
        logger.info("%s: kvxfer without %s", setting, ", ".join(sorted(backends)))

    def _may_use(self, backend: str) -> bool:
        """Whether KVXFER_BACKENDS has it: "faulty:tcp" does, "^tcp" does not."""
        own = self._own_backends
        named = [name.rpartition(":")[2] for name in own if not name.startswith("^")]
        return backend in named if named else f"^{backend}" not in own

    def _set(self, setting: _Setting, backend: str, option: str, value: Any) -> None:
        variable = f"{backend}_{option}".upper()
        if environment.own(variable):
            logger.info("%s is not applied, for KVXFER_%s is set", setting, variable)
            return
        if not self._may_use(backend):
            logger.info("%s is not applied, for KVXFER_BACKENDS is without %s", setting, backend)
            return
        self.settings.sections.setdefault(backend, {})[option] = value
        self.settings.applied.append(str(setting))

    def transports(self, setting: _Setting) -> None:
        if self.over_ucx:
            self._set(setting, "ucx", "tls", setting.value)
            return
        mapped = map_transports(setting.value)
        self._leave_out(setting, mapped.left_out)
        _warn(setting, mapped.problems)

    def devices(self, setting: _Setting) -> None:
        if self.over_ucx:
            self._set(setting, "ucx", "net_devices", setting.value)
            return
        on_loopback = is_loopback(environment.listen_host())
        mapped = map_devices(setting.value, self._host, on_loopback)
        chosen = {b for b, option in _OWN_DEVICES.items() if environment.own(option)}
        self._leave_out(setting, mapped.left_out - chosen)
        for backend, options in mapped.options.items():
            for option, value in options.items():
                self._set(setting, backend, option, value)
        _warn(setting, mapped.problems)

    def number(self, setting: _Setting) -> None:
        option, low, high = _NUMBERS[setting.name]
        if setting.value == "auto":
            return
        try:
            number = int(setting.value, 0)
            if not low <= number <= high:
                raise ValueError
        except ValueError:
            variable = f"KVXFER_VERBS_{option.upper()}"
            _warn(setting, [f"no number from {low} to {high}; kvxfer's option is {variable}"])
            return
        if self._host.rdma:
            self._set(setting, "verbs", option, number)

    def unused(self, setting: _Setting) -> None:
        """A variable of UCX, which kvxfer does not use."""
        why = "kvxfer does not use UCX, and has no such setting; KVXFER_BACKENDS=ucx,… uses it"
        if self.over_ucx:
            why = f"kvxfer's ucx takes it from the environment alone; set {setting.name} there"
        _warn(setting, [why])


def _engine_config(params: Mapping[str, str]) -> dict[str, str]:
    """As in the environment: "RNDV_THRESH=inf,TLS=rc" are settings of UCX without their prefix."""
    pairs = [item.partition("=") for item in split(params.get("engine_config", ""))]
    return {f"UCX_{key.strip()}": value.strip() for key, _, value in pairs}


def _read_ucx(reader: _Reader, variables: Mapping[str, str], has_devices: bool) -> None:
    for name, value in sorted(variables.items()):
        setting = _Setting(name, value)
        if name == "UCX_TLS":
            reader.transports(setting)
        elif name == "UCX_NET_DEVICES":
            if has_devices:
                logger.info("%s is not applied: a list of the program goes before it", setting)
            else:
                reader.devices(setting)
        elif name in _NUMBERS:
            reader.number(setting)
        elif not name.removeprefix("UCX_").startswith(_INTERNAL):
            reader.unused(setting)


def _device_list(params: Mapping[str, str]) -> _Setting | None:
    for name in _DEVICE_LISTS:
        if params.get(name, "").strip():
            # NIXL takes spaces for commas too.
            devices = split(params[name].replace(" ", ","))
            return _Setting(name, ",".join(devices))
    return None


def warn_of_parameters(backend: str, params: Mapping[str, str], too_late: bool) -> None:
    """Of those that kvxfer has nothing for. ``too_late``: kvxfer's agent is made already."""
    for name, value in params.items():
        setting = _Setting(f"{name} of backend {backend}", value)
        if not value.strip() or name in _THREADS:
            continue
        if name == "ucx_error_handling_mode":
            why = "kvxfer always notices lost peers; KVXFER_BACKENDS chooses what it uses"
            _warn(setting, [] if value == "peer" else [why])
        elif backend not in _OVER_UCX or name not in (*_DEVICE_LISTS, "engine_config"):
            _warn(setting, ["kvxfer has no such parameter; docs/cli.md lists its options"])
        elif too_late:
            why = "kvxfer's agent was made with the first backend; give it to that one"
            _warn(setting, [f"{why}, or set KVXFER_VERBS_DEVICES, KVXFER_TCP_ADDRESSES"])


def settings_for(backend: str, params: Mapping[str, str], host: Host) -> Settings:
    """Of the backend that an agent is made with. In NIXL's order: a list of devices goes before
    the variable, and any other variable before engine_config."""
    reader = _Reader(host)
    if backend not in _OVER_UCX:
        return reader.settings
    listed = _device_list(params)
    if listed is not None:
        reader.devices(listed)
    variables = {} if reader.over_ucx else environment.ucx()
    _read_ucx(reader, _engine_config(params) | variables, listed is not None)
    return reader.settings
