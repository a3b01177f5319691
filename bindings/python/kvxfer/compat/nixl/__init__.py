"""NIXL's Python interface, as of NIXL 1.5.1, served by kvxfer.

A program that imports ``nixl`` runs on kvxfer without a change when this package's folder comes
first on its path::

    python -m kvxfer.compat.nixl -- vllm serve …

Every process of the exchange has to run so: the metadata of NIXL itself is not understood.
"""

from pathlib import Path


def path() -> Path:
    """The folder that makes ``import nixl`` mean kvxfer when it is first on ``sys.path``."""
    return Path(__file__).resolve().parent / "site"
