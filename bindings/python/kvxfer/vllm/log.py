"""The connector's lines among those of vLLM, by its settings."""

from vllm.logger import init_logger

logger = init_logger("vllm.kvxfer")
