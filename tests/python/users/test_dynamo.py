"""Dynamo's own code over nixl: the operations of dynamo.nixl_connect, between two processes.

What a worker sends is described to the other by RdmaMetadata, which Dynamo carries as JSON.
"""

from __future__ import annotations

import asyncio
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

import peers

if TYPE_CHECKING:
    import torch

_BYTES = 3 << 20


def _pattern(seed: int, size: int = _BYTES) -> torch.Tensor:
    import torch

    return torch.randint(0, 256, (size,), generator=torch.Generator().manual_seed(seed)).to(
        torch.uint8
    )


async def _offer(peer: Connection) -> None:
    """Makes memory readable, then writable, and waits for the other to have used it."""
    import torch
    from dynamo.nixl_connect import Connector, Descriptor

    connector = Connector()
    sources = [_pattern(1), _pattern(2)]
    readable = await connector.create_readable([Descriptor(source) for source in sources])
    peer.send(readable.metadata().model_dump_json())
    await readable.wait_for_completion()

    target = torch.zeros(_BYTES, dtype=torch.uint8)
    writable = await connector.create_writable(Descriptor(target))
    peer.send(writable.metadata(hex_encode=True).model_dump_json())
    await writable.wait_for_completion()
    # Expect every byte to be there once the notification is.
    assert torch.equal(target, _pattern(3))


async def _use(peer: Connection) -> None:
    import numpy
    import torch
    from dynamo.nixl_connect import Connector, Descriptor, OperationStatus, RdmaMetadata

    connector = Connector()
    targets = [torch.zeros(_BYTES, dtype=torch.uint8) for _ in range(2)]
    remote = RdmaMetadata.model_validate_json(peer.recv())
    read = await connector.begin_read(remote, [Descriptor(target) for target in targets])
    await read.wait_for_completion()
    assert read.status == OperationStatus.COMPLETE
    assert torch.equal(targets[0], _pattern(1)) and torch.equal(targets[1], _pattern(2))

    # A numpy array takes another way to the registration than a tensor.
    source = numpy.ascontiguousarray(_pattern(3).numpy())
    remote = RdmaMetadata.model_validate_json(peer.recv())
    write = await connector.begin_write(Descriptor((source, "cpu")), remote)
    await write.wait_for_completion()
    assert write.status == OperationStatus.COMPLETE


def offerer(peer: Connection) -> None:
    asyncio.run(_offer(peer))
    peer.send("done")
    peer.recv()


def user(peer: Connection) -> None:
    asyncio.run(_use(peer))
    peer.recv()
    peer.send("done")


def test_read_and_write_between_two_workers(tmp_path: Path) -> None:
    peers.need_user("dynamo")
    peers.run_pair(tmp_path, offerer, user)
