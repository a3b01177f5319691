"""SGLang's own code over nixl: the KV manager, sender and receiver of its PD disaggregation, with
its bootstrap server, between a prefill and a decode process.

The KV cache is in host memory (SGLang's kind "DRAM"), one tensor for K and one for V in each layer.
"""

import os
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import peers

_LAYERS = 3
_SLOTS = 64  # pages in the cache of the prefill side; the decode side has more
_PAGE_BYTES = 2048
_AUX_BYTES = 256
_SOURCE = [5, 6, 7, 40, 41, 2]
_TARGET = [70, 71, 12, 13, 14, 60]
_CHUNK = 4  # pages that are sent before the last ones are computed
_ROOM = 4711
_AUX_SOURCE, _AUX_TARGET = 1, 3


def _publish(role: str, bootstrap_port: int) -> Any:
    """The configuration that a launcher would give to the one rank of each role."""
    os.environ["SGLANG_HOST_IP"] = "127.0.0.1"
    from sglang.srt import runtime_context
    from sglang.srt.server_args import ServerArgs

    arguments = ServerArgs(
        model_path="dummy",
        device="cpu",
        host="127.0.0.1",
        page_size=1,
        disaggregation_mode=role,
        disaggregation_transfer_backend="nixl",
        disaggregation_bootstrap_port=bootstrap_port,
    )
    ranks = runtime_context.SpawnRanks(world_rank=0, gpu_id=0)
    runtime_context.publish(arguments, role="scheduler", ranks=ranks)
    # No process groups are built for one rank, and the managers only keep this one.
    runtime_context.get_parallel().override_permanently(pp_group=None)
    return arguments


def _cache(slots: int, seed: int | None) -> tuple[list, list]:
    import torch

    generator = torch.Generator().manual_seed(seed or 0)

    def tensor(rows: int, width: int) -> Any:
        shape = (rows, width)
        if seed is None:
            return torch.zeros(shape, dtype=torch.uint8)
        return torch.randint(0, 256, shape, generator=generator).to(torch.uint8)

    kv = [tensor(slots, _PAGE_BYTES) for _ in range(2 * _LAYERS)]
    return kv, [tensor(8, _AUX_BYTES) for _ in range(2)]


def _kv_args(kv: list, aux: list) -> Any:
    from sglang.srt.disaggregation.base.conn import KVArgs

    args = KVArgs()
    args.engine_rank = args.gpu_id = args.system_dp_rank = args.pp_rank = 0
    args.prefill_start_layer, args.prefill_end_layer = 0, _LAYERS
    args.kv_data_ptrs = [tensor.data_ptr() for tensor in kv]
    args.kv_data_lens = [tensor.nbytes for tensor in kv]
    args.kv_item_lens = [_PAGE_BYTES] * len(kv)
    args.kv_layer_ids = list(range(_LAYERS)) * 2
    args.kv_data_mem_kinds = ["DRAM"] * len(kv)
    args.kv_cache_dtype_str = "uint8"
    args.aux_data_ptrs = [tensor.data_ptr() for tensor in aux]
    args.aux_data_lens = [tensor.nbytes for tensor in aux]
    args.aux_item_lens = [_AUX_BYTES] * len(aux)
    args.state_types, args.state_data_ptrs, args.state_data_lens = [], [], []
    args.state_item_lens, args.state_layer_ids, args.state_dim_per_tensor = [], [], []
    args.is_hybrid_mla_backend = False
    args.ib_device = ""
    args.kv_head_num = args.total_kv_head_num = 2
    args.page_size = 1
    return args


def _until(poll: Any, *wanted: int) -> int:
    """Polls as SGLang's scheduler does, until one of the states."""
    end = time.monotonic() + 30
    while (state := poll()) not in wanted:
        assert time.monotonic() < end, f"still in state {state}"
        time.sleep(0.002)
    return state


def prefill(peer: Connection, port: int) -> None:
    arguments = _publish("prefill", port)
    import numpy as np
    from sglang.srt.disaggregation.base.conn import KVPoll
    from sglang.srt.disaggregation.nixl import NixlKVBootstrapServer, NixlKVManager, NixlKVSender
    from sglang.srt.disaggregation.utils import DisaggregationMode

    NixlKVBootstrapServer(host="127.0.0.1", port=port)  # a thread, until the process ends
    kv, aux = _cache(_SLOTS, seed=1)
    manager = NixlKVManager(_kv_args(kv, aux), DisaggregationMode.PREFILL, arguments)
    peer.send("registered")
    sender = NixlKVSender(manager, f"127.0.0.1:{port}", _ROOM)
    sender.init(len(_SOURCE), _AUX_SOURCE)
    assert _until(sender.poll, KVPoll.WaitingForInput, KVPoll.Failed) == KVPoll.WaitingForInput
    sender.send(np.array(_SOURCE[:_CHUNK], np.int32))
    sender.send(np.array(_SOURCE[_CHUNK:], np.int32))
    assert _until(sender.poll, KVPoll.Success, KVPoll.Failed) == KVPoll.Success
    assert sender.get_transfer_metric().transfer_total_bytes == (
        len(_SOURCE) * 2 * _LAYERS * _PAGE_BYTES
    )
    assert peer.recv() == "checked"


def decode(peer: Connection, port: int) -> None:
    arguments = _publish("decode", port)
    import numpy as np
    import torch
    from sglang.srt.disaggregation.base.conn import KVPoll
    from sglang.srt.disaggregation.nixl import NixlKVManager, NixlKVReceiver
    from sglang.srt.disaggregation.utils import DisaggregationMode

    kv, aux = _cache(_SLOTS + 16, seed=None)
    manager = NixlKVManager(_kv_args(kv, aux), DisaggregationMode.DECODE, arguments)
    assert peer.recv() == "registered"
    address = f"127.0.0.1:{port}"
    assert manager.try_ensure_parallel_info(address)
    receiver = NixlKVReceiver(manager, address, _ROOM)
    receiver.init(prefill_dp_rank=0)
    receiver.send_metadata(np.array(_TARGET, np.int32), _AUX_TARGET)
    assert _until(receiver.poll, KVPoll.Success, KVPoll.Failed) == KVPoll.Success

    # Expect the pages where they were asked for, and nothing elsewhere.
    source_kv, source_aux = _cache(_SLOTS, seed=1)
    for mine, theirs in zip(kv, source_kv, strict=True):
        expected = torch.zeros_like(mine)
        expected[_TARGET] = theirs[_SOURCE]
        assert torch.equal(mine, expected)
    for mine, theirs in zip(aux, source_aux, strict=True):
        expected = torch.zeros_like(mine)
        expected[_AUX_TARGET] = theirs[_AUX_SOURCE]
        assert torch.equal(mine, expected)
    peer.send("checked")


def test_prefill_sends_to_decode(tmp_path: Path) -> None:
    peers.need_user("sglang")
    peers.run_pair(tmp_path, prefill, decode, peers.free_port())
