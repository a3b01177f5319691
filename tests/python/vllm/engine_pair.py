"""Two engines of a real vLLM: one that prefills, one that decodes, the stock NixlConnector between
them."""

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine_process import EngineProcess

BLOCK_SIZE = 32  # the attention of vLLM's CPU build takes multiples of this
_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
    "HF_HUB_OFFLINE": "1",
    # OpenMP's threads spin at each barrier: with two engines on two cores each step takes seconds.
    "OMP_NUM_THREADS": "1",
    "UCX_TLS": "tcp,self,sm",  # of the real NIXL
}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def engine_environment(folder: Path) -> dict[str, str]:
    """That of an engine's process, which leaves files in this folder only. KVXFER_NIXL_PATH, the
    folder of the drop-in, goes in front of where the real NIXL is installed; without it the engines
    run over the real one."""
    env = os.environ | _ENVIRONMENT
    env["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(_free_port())
    env |= {"TMPDIR": str(folder), "VLLM_CACHE_ROOT": str(folder / "cache")}
    path = [env.get("KVXFER_NIXL_PATH", ""), env.get("PYTHONPATH", "")]
    env["PYTHONPATH"] = os.pathsep.join(entry for entry in path if entry)
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    return env


def engine_config(model: Path, role: str) -> dict[str, Any]:
    return {
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
        "kv_transfer_config": {
            "kv_connector": "NixlConnector",
            "kv_role": role,
            "kv_load_failure_policy": "recompute",
        },
    }


@dataclass
class Pair:
    """`prefill` computes prompts and keeps their KV blocks, `decode` fetches them and goes on."""

    prefill: EngineProcess
    decode: EngineProcess

    @classmethod
    def start(cls, model: Path, folder: Path) -> "Pair":
        """Returns before they are up: they start side by side. Their logs are in the folder."""

        def engine(name: str, role: str) -> EngineProcess:
            env = engine_environment(folder)
            return EngineProcess(name, engine_config(model, role), env, folder)

        prefill = engine("prefill", "kv_producer")
        try:
            decode = engine("decode", "kv_consumer")
        except BaseException:
            prefill.close()
            raise
        return cls(prefill, decode)

    def close(self) -> None:
        self.prefill.close()
        self.decode.close()
