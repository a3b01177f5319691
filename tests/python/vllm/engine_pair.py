"""Two engines of a real vLLM: one that prefills, one that decodes, a connector between them."""

import os
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from engine import Engine
from free_ports import free_port
from tiny_model import write_tiny_model

_MODEL_SEED = 1
BLOCK_SIZE = 32  # the attention of vLLM's CPU build takes multiples of this
_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    # OpenMP's threads spin at each barrier: with two engines on two cores each step takes seconds.
    "OMP_NUM_THREADS": "1",
}


@dataclass(frozen=True)
class Connector:
    """What vLLM is told of a KV connector; of another setting: dataclasses.replace(KVXFER, ...)."""

    name: str
    module: str = ""
    """Where it is imported from; default: vLLM knows it by its name."""
    role: str = ""
    """Default: kv_producer of the engine that prefills, kv_consumer of the one that decodes."""
    on_load_failure: str = "recompute"
    extra: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)

    def config(self, role: str, engine_id: str) -> dict[str, Any]:
        """vLLM's kv_transfer_config."""
        config = {
            "kv_connector": self.name,
            "kv_role": self.role or role,
            "kv_load_failure_policy": self.on_load_failure,
            "engine_id": engine_id,
        }
        if self.module:
            config["kv_connector_module_path"] = self.module
        return config | {"kv_connector_extra_config": dict(self.extra)}


NIXL = Connector(
    "NixlConnector",
    environment={
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
        "UCX_TLS": "tcp,self,sm",
    },
)
NIXL_PUSH = replace(NIXL, name="NixlPushConnector")
"""Its prefill has to serve(): it writes when decode has told it where to."""
KVXFER = Connector("KvxferConnector", module="kvxfer.vllm", extra={"host": "127.0.0.1"})


TP_2 = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}
PP_2 = {
    "pipeline_parallel_size": 2,
    "distributed_executor_backend": "mp",
    # vLLM 0.32's CPU build makes the buffer between stages as it warms up, which it does only of
    # what is compiled. This compiles nothing.
    "enforce_eager": False,
    "compilation_config": {"mode": 1, "backend": "eager"},
}


def engine_environment(folder: Path, connector: Connector) -> dict[str, str]:
    """That of an engine's process, which leaves files in this folder only. KVXFER_NIXL_PATH, the
    folder of the drop-in, goes in front of where the real NIXL is installed; without it the engines
    run over the real one."""
    env = dict(os.environ) | _ENVIRONMENT
    env["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(free_port())
    env |= {"TMPDIR": str(folder), "VLLM_CACHE_ROOT": str(folder / "cache")}
    here = str(Path(__file__).parent)  # connectors for tests alone
    path = [env.get("KVXFER_NIXL_PATH", ""), env.get("PYTHONPATH", ""), here]
    env["PYTHONPATH"] = os.pathsep.join(entry for entry in path if entry)
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    return env | dict(connector.environment)


def engine_config(model: Path, transfer: Mapping[str, Any] | None) -> dict[str, Any]:
    """What vllm.LLM is called with. Without `transfer` the engine has no connector."""
    config = {
        "model": str(model),
        "skip_tokenizer_init": True,
        "dtype": "float32",
        "max_model_len": 1024,
        "max_num_seqs": 16,
        "block_size": BLOCK_SIZE,
        # 2048 blocks in each of four layers: 128 MB, and the lists of descriptors stay long.
        "num_gpu_blocks_override": 2048,
        "enforce_eager": True,
        "distributed_executor_backend": "uni",
        "disable_log_stats": False,
    }
    return config | ({"kv_transfer_config": dict(transfer)} if transfer else {})


def start_engine(
    name: str, model: Path, folder: Path, connector: Connector, role: str, **options: Any
) -> Engine:
    """Returns before it is up. Its log is in the folder; options are vllm.LLM's. Its engine_id is
    part of the config: an engine that is restarted has the one that it had."""
    transfer = connector.config(role, f"{name}-{uuid.uuid4().hex[:8]}")
    config = engine_config(model, transfer) | options
    return Engine(name, config, engine_environment(folder, connector), folder)


@dataclass(eq=False)
class Pair:
    """`prefill` computes prompts and keeps their KV blocks, `decode` fetches them and goes on.
    Either can be restarted, and keeps its name in the other's eyes: pair.decode.restart()."""

    prefill: Engine
    decode: Engine

    @classmethod
    def start(
        cls,
        model: Path,
        folder: Path,
        connector: Connector,
        decode: Connector | None = None,
        prefill_options: Mapping[str, Any] | None = None,
        decode_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> "Pair":
        """Returns before they are up: they start side by side. `decode`: what the decode engine is
        told, where that differs; options are vllm.LLM's, of both, the other two of one alone."""
        prefill = start_engine(
            "prefill",
            model,
            folder,
            connector,
            "kv_producer",
            **(options | dict(prefill_options or {})),
        )
        try:
            other = start_engine(
                "decode",
                model,
                folder,
                decode or connector,
                "kv_consumer",
                **(options | dict(decode_options or {})),
            )
        except BaseException:
            prefill.close()
            raise
        return cls(prefill, other)

    @property
    def engines(self) -> tuple[Engine, Engine]:
        return (self.prefill, self.decode)

    def assert_all_comes_back(self, within_s: float) -> None:
        """Each engine has nothing left to do, as many free blocks as at its start, and forgets what
        it has cached."""
        for engine in self.engines:
            assert engine.idle(within_s), f"{engine.name} still has something to do"
            assert engine.free_blocks() == engine.wait_until_up()["free_blocks"], engine.name
            assert engine.forget(), engine.name

    def close(self) -> None:
        for engine in self.engines:
            engine.close()


class StartPair:
    """Called for a pair that is up, it ends the one before: engines share the machine's memory and
    cores."""

    def __init__(self, new_folder: Callable[[], Path]) -> None:
        self._new_folder = new_folder
        self._pair: Pair | None = None
        self._alone: Engine | None = None

    def __call__(
        self,
        connector: Connector,
        decode: Connector | None = None,
        window: int | None = None,
        write: Callable[[Path, int], None] | None = None,
        draft: Callable[[Path, int], None] | None = None,
        **options: Any,
    ) -> Pair:
        """`window`: of a model with two KV groups; `write`: writes another model; `draft`: one that
        drafts for it, in both engines; the others are Pair.start's."""
        self.close()
        folder = self._new_folder()
        print(f"seed of the model: {_MODEL_SEED}")
        if write is None:
            write_tiny_model(folder / "model", _MODEL_SEED, window)
        else:
            write(folder / "model", _MODEL_SEED)
        if draft is not None:
            draft(folder / "draft", _MODEL_SEED + 1)
            options["speculative_config"] = {
                "method": "eagle",
                "model": str(folder / "draft"),
                "num_speculative_tokens": 2,
            }
        self._pair = Pair.start(folder / "model", folder, connector, decode, **options)
        for engine in self._pair.engines:
            print(f"{engine.name}: {engine.wait_until_up()}")
        return self._pair

    def alone(self, connector: Connector, role: str = "kv_producer", **options: Any) -> Engine:
        """One engine, that prefills or (kv_consumer) decodes; not yet up."""
        self.close()
        folder = self._new_folder()
        write_tiny_model(folder / "model", _MODEL_SEED)
        name = "decode" if role == "kv_consumer" else "prefill"
        self._alone = start_engine(name, folder / "model", folder, connector, role, **options)
        return self._alone

    @property
    def engines(self) -> tuple[Engine, ...]:
        return (self._pair.engines if self._pair else ()) + ((self._alone,) if self._alone else ())

    def close(self) -> None:
        for open_one in (self._pair, self._alone):
            if open_one is not None:
                open_one.close()
        self._pair = self._alone = None
