"""Under which names NIXL's modules are found: nixl, nixl_cu12 and nixl_cu13 are one and the same.

Not copies of their names: what a program patches under one name is what all the others, and the
implementation, see.
"""

import sys
from types import ModuleType

from . import api, bindings, logs, utils

MODULES = {"_api": api, "_bindings": bindings, "_utils": utils, "logging": logs}


def stand_for(package: str) -> None:
    """Makes the modules of this one the modules of ``package``, which is being imported."""
    for name, module in MODULES.items():
        sys.modules[f"{package}.{name}"] = module
        setattr(sys.modules[package], name, module)


def public(module: ModuleType) -> dict[str, object]:
    return {name: value for name, value in vars(module).items() if not name.startswith("_")}
