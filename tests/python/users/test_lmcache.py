"""LMCache's own code over nixl, between two processes: the channel of its P2P and PD backends
(NixlChannel, both directions, by call and by coroutine) and the one of its distributed storage
(NixlTransferChannelContext, which reads)."""

from __future__ import annotations

import asyncio
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import peers

if TYPE_CHECKING:
    import torch

_PAGE = 64 << 10
_PAGES = 32
_SIZE = _PAGE * _PAGES
# By page of the other side: neither in order nor adjacent.
_REMOTE = [7, 3, 4, 20]
_LOCAL = [0, 9, 1, 30]


def _memory(seed: int | None) -> torch.Tensor:
    import torch

    if seed is None:
        return torch.zeros(_SIZE, dtype=torch.uint8)
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (_SIZE,), generator=generator).to(torch.uint8)


def _page(memory: torch.Tensor, index: int) -> torch.Tensor:
    return memory[index * _PAGE : (index + 1) * _PAGE]


def _objects(memory: torch.Tensor, pages: list[int]) -> list:
    """Its memory objects, whose address is the number of a page."""
    import torch
    from lmcache.v1.memory_management import MemoryObjMetadata, TensorMemoryObj

    return [
        TensorMemoryObj(
            _page(memory, page),
            MemoryObjMetadata(
                shape=torch.Size([_PAGE]),
                dtype=torch.uint8,
                address=page,
                phy_size=_PAGE,
                ref_count=1,
            ),
            parent_allocator=None,
        )
        for page in pages
    ]


def _channel(memory: torch.Tensor, role: str, url: str | None) -> Any:
    from lmcache.v1.transfer_channel.nixl_channel import NixlChannel

    return NixlChannel(
        device="cpu",
        role=role,
        buffer_ptr=memory.data_ptr(),
        buffer_size=_SIZE,
        align_bytes=_PAGE,
        tp_rank=0,
        peer_init_url=url,
    )


def channel_receiver(peer: Connection, port: int) -> None:
    memory = _memory(None)
    channel = _channel(memory, "receiver", f"127.0.0.1:{port}")
    peer.send("listening")
    assert peer.recv() == "written"
    expected, source = _memory(None), _memory(1)
    for remote, local in zip(_REMOTE, _LOCAL, strict=True):
        _page(expected, remote).copy_(_page(source, local))
    assert (memory == expected).all()  # those pages and no others
    assert channel.remote_xfer_handler_exists("sender")
    memory.copy_(_memory(2))
    peer.send("filled")
    peer.recv()


def channel_sender(peer: Connection, port: int) -> None:
    memory = _memory(1)
    channel = _channel(memory, "sender", None)
    assert peer.recv() == "listening"
    channel.lazy_init_peer_connection(
        local_id="sender", peer_id="receiver", peer_init_url=f"127.0.0.1:{port}"
    )
    # Half of it by call, half by coroutine.
    for coroutine, part in ((False, slice(0, 2)), (True, slice(2, 4))):
        objects = _objects(memory, _LOCAL[part])
        spec = {"receiver_id": "receiver", "remote_indexes": _REMOTE[part]}
        if coroutine:
            assert asyncio.run(channel.async_batched_write(objects, spec)) == 2
        else:
            assert channel.batched_write(objects, spec) == 2
    peer.send("written")

    assert peer.recv() == "filled"
    memory.zero_()
    expected, source = _memory(None), _memory(2)
    for remote, local in zip(_REMOTE, _LOCAL, strict=True):
        _page(expected, local).copy_(_page(source, remote))
    spec = {"sender_id": "receiver", "remote_indexes": _REMOTE[:2]}
    assert channel.batched_read(_objects(memory, _LOCAL[:2]), spec) == 2
    spec = {"sender_id": "receiver", "remote_indexes": _REMOTE[2:]}
    assert asyncio.run(channel.async_batched_read(_objects(memory, _LOCAL[2:]), spec)) == 2
    assert (memory == expected).all()
    peer.send("read")
    channel.close()


def _context(memory: torch.Tensor, port: int) -> Any:
    from lmcache.v1.distributed.internal_api import L1MemoryDesc
    from lmcache.v1.distributed.transfer_channel.impl.nixl_impl import NixlTransferChannelContext

    url = f"127.0.0.1:{port}"
    description = L1MemoryDesc(ptr=memory.data_ptr(), size=_SIZE, align_bytes=_PAGE)
    return NixlTransferChannelContext(description, listen_url=url, advertise_url=url)


def context_owner(peer: Connection, port: int, reader_port: int) -> None:
    memory = _memory(3)
    context = _context(memory, port)
    peer.send("listening")
    assert peer.recv() == "read"
    assert context.get_num_connected_clients() == 1
    context.close()


def context_reader(peer: Connection, port: int, reader_port: int) -> None:
    memory, source = _memory(None), _memory(3)
    context = _context(memory, reader_port)
    assert peer.recv() == "listening"
    client = context.get_transfer_channel_client(f"127.0.0.1:{port}")
    # An object of two pages and one of a page and a half.
    sizes = (2 * _PAGE, 3 * _PAGE // 2)
    local = context.get_transfer_channel_address([(0, sizes[0]), (8 * _PAGE, sizes[1])])
    remote = context.get_transfer_channel_address([(5 * _PAGE, sizes[0]), (16 * _PAGE, sizes[1])])
    task = client.submit_read(local, remote)
    end = time.monotonic() + 30
    while not (result := client.query_read_status(task)).is_finished():
        assert time.monotonic() < end
    assert result.succeeded_mask == [True, True]
    expected = _memory(None)
    for mine, theirs in ((0, 5), (1, 6), (8, 16), (9, 17)):  # whole pages, as its lists have them
        _page(expected, mine).copy_(_page(source, theirs))
    assert (memory == expected).all()
    peer.send("read")
    context.close()


def test_channel_writes_and_reads(tmp_path: Path) -> None:
    peers.need_user("lmcache")
    peers.run_pair(tmp_path, channel_receiver, channel_sender, peers.free_port())


def test_context_reads(tmp_path: Path) -> None:
    peers.need_user("lmcache")
    ports = peers.free_port(), peers.free_port()
    peers.run_pair(tmp_path, context_owner, context_reader, *ports)
