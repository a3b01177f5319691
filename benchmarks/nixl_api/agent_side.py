"""What both processes have: a cache, a strip for small descriptors, an agent that is made anew."""

import base64
from typing import Any

import numpy as np
from clock import Seen, now
from memory import Cache


class AgentSide:
    def __init__(self, api: Any, options: dict, seen: Seen) -> None:
        shape = options["cache"]
        self._api, self._config, self._seen = api, options["config"], seen
        self._role = options["role"]
        self._made = 0
        self.cache = Cache(**shape, seed=options["seed"], device=options["device"])
        self.agent: Any = None

    def make(self) -> dict:
        """An agent, ready to meet its peer; the one before is gone."""
        self.drop()
        self._made += 1
        before = now()
        self.agent = self._api.nixl_agent(
            f"{self._role}-{self._made}", self._api.nixl_agent_config(**self._config)
        )
        self.agent.register_memory(self.cache.regions(), self.cache.kind)
        metadata = self.agent.get_agent_metadata()
        took = now() - before
        self._prepare()
        return {
            "create_ns": took,
            "metadata": base64.b64encode(metadata).decode(),
            "bases": self.cache.bases,
        }

    def _prepare(self) -> None:
        pass

    def drop(self) -> None:
        self.agent = None

    def descriptors(self, rows: np.ndarray) -> Any:
        return self.agent.get_xfer_descs(rows, self.cache.kind)

    def know(self, metadata: bytes) -> str:
        """The name of the agent that this is of, which can be reached from now on."""
        name = self.agent.add_remote_agent(metadata)
        return name.decode() if isinstance(name, bytes) else name

    def prepare_list(self, peer: str, rows: np.ndarray) -> Any:
        return self.agent.prep_xfer_dlist(peer, self.descriptors(rows))
