"""Which weights a model has, without reading them all."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MAX_HEADER_BYTES = 100 << 20
_SAMPLE_BYTES = 64
# Of a mixture of experts with tens of thousands of tensors, all that are not an expert's, and of those
# of experts so many.
_MOST_OF_EXPERTS = 4096
# On a network file system a read takes a millisecond or more, and any number of them at a time hardly
# longer.
_THREADS = 64


@dataclass(slots=True)
class _Tensor:
    file: int
    name: str
    described: str
    at: int
    """A place in the middle of it, in the file."""


def weights_of(model: str, revision: str | None) -> str:
    """The name of a model on a hub; of a folder, wherever it lies, what its files say of all tensors, and
    a sample of the bytes of each. ValueError: a folder without weights."""
    folder = Path(model)
    if not folder.is_dir():
        return f"{model}@{revision or 'main'}"
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ValueError(
            f"KvxferConnector: {model} has no *.safetensors to tell its weights by: set "
            '"model_id" in kv_connector_extra_config, the same for all engines with these weights'
        )
    opened = [os.open(path, os.O_RDONLY) for path in files]
    try:
        return _digest(opened)
    finally:
        for file in opened:
            os.close(file)


def _digest(files: list[int]) -> str:
    digest = hashlib.sha256()
    with ThreadPoolExecutor(_THREADS) as pool:
        tensors: list[_Tensor] = []
        for number, (header, begin) in enumerate(pool.map(_header, files)):
            found = list(_tensors(number, header, begin))
            digest.update("\n".join(tensor.described for tensor in found).encode())
            tensors += found
        for sample in pool.map(
            lambda tensor: os.pread(files[tensor.file], _SAMPLE_BYTES, tensor.at), _chosen(tensors)
        ):
            digest.update(sample)
    return digest.hexdigest()


def _header(file: int) -> tuple[dict[str, Any], int]:
    """Without its metadata, which differs between copies of one model; and where the bytes begin."""
    size = int.from_bytes(os.pread(file, 8, 0), "little")
    header = json.loads(os.pread(file, min(size, _MAX_HEADER_BYTES), 8))
    header.pop("__metadata__", None)
    return header, 8 + size


def _tensors(file: int, header: dict[str, Any], begin: int) -> Iterator[_Tensor]:
    for name, tensor in sorted(header.items()):
        first, last = tensor["data_offsets"]
        described = f"{name} {tensor['dtype']} {tensor['shape']} {last - first}"
        yield _Tensor(file, name, described, begin + (first + last) // 2)


def _chosen(tensors: list[_Tensor]) -> list[_Tensor]:
    experts = [tensor for tensor in tensors if ".experts." in tensor.name]
    step = -(-len(experts) // _MOST_OF_EXPERTS) or 1
    return [tensor for tensor in tensors if ".experts." not in tensor.name] + experts[::step]
