"""Who is measured: the drop-in, and NIXL in every configuration that may be its best."""

import dataclasses

DROP_IN, NIXL = "drop-in", "nixl"


@dataclasses.dataclass(frozen=True)
class Contestant:
    name: str
    kind: str
    config: dict  # of nixl_agent_config
    environment: dict[str, str] = dataclasses.field(default_factory=dict)

    def describe(self) -> dict:
        return dataclasses.asdict(self)


def _nixl(name: str, tls: str | None, **config: object) -> Contestant:
    return Contestant(name, NIXL, config, {"UCX_TLS": tls} if tls else {})


_SAME_HOST = "tcp,self,sm"

ALL = (
    Contestant("drop-in", DROP_IN, {}),
    _nixl("nixl", None, enable_prog_thread=False),
    _nixl("nixl thread", None, enable_prog_thread=True),
    _nixl("nixl sm", _SAME_HOST, enable_prog_thread=False),
    _nixl("nixl sm thread", _SAME_HOST, enable_prog_thread=True),
    # As vLLM makes its agents, where it is told nothing else.
    _nixl("nixl 4 threads", None, enable_prog_thread=True, num_threads=4),
)
