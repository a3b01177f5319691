"""What the modules have by name, and the signatures that callers rely on."""

import importlib
import inspect
from typing import Any


def case_modules(nixl: Any, rec: Any) -> None:
    for name in (
        "nixl",
        "nixl._api",
        "nixl._bindings",
        "nixl._utils",
        "nixl_cu13",
        "nixl_cu13._api",
    ):
        rec.call(f"import {name}", lambda name=name: type(importlib.import_module(name)).__name__)
    rec.check(
        "one class, whatever it is imported as",
        importlib.import_module("nixl_cu13._bindings").nixlBackendError
        is importlib.import_module("nixl._bindings").nixlBackendError,
    )
    package = importlib.import_module("nixl")
    for name in ("nixl_agent", "nixlXferDList", "DRAM_SEG", "malloc_passthru", "get_logger"):
        rec.check(f"nixl.{name}", hasattr(package, name))
    rec.call(
        "the API's enumeration", lambda: package.nixl_thread_sync_t is nixl.api.nixl_thread_sync_t
    )
    get_logger = importlib.import_module("nixl._api").__dict__.get("get_logger")
    get_logger = get_logger or package.get_logger
    rec.call("logger", lambda: type(get_logger("_x")).__name__)


def case_enumerations(nixl: Any, rec: Any) -> None:
    b = nixl.bindings
    for name in (
        "nixl_mem_t",
        "nixl_xfer_op_t",
        "nixl_status_t",
        "nixl_thread_sync_t",
        "nixl_cost_t",
    ):
        members = getattr(b, name).__members__
        rec.call(name, lambda members=members: {key: int(value) for key, value in members.items()})
        for key, value in members.items():
            rec.check(
                f"{key} is a name of the module",
                getattr(b, key) is value or getattr(b, key) == value,
            )
    rec.call("repr", repr, b.DRAM_SEG)
    rec.call("str", str, b.NIXL_ERR_NOT_FOUND)
    rec.call("name", lambda: b.VRAM_SEG.name)
    rec.call("value", lambda: b.VRAM_SEG.value)
    rec.call("of a number", b.nixl_mem_t, 1)
    rec.call(
        "equal to its number", lambda: (b.DRAM_SEG == 0, b.NIXL_READ == 0, b.NIXL_IN_PROG == 1)
    )
    rec.call("not so", lambda: (b.NIXL_THREAD_SYNC_NONE == 0, b.NIXL_COST_ANALYTICAL_BACKEND == 0))
    rec.call("hash", lambda: hash(b.VRAM_SEG) == hash(1))
    rec.call("constants", lambda: (b.NIXL_INIT_AGENT, b.DEFAULT_COMM_PORT))
    rec.differs("GPU API", "True", "False", lambda: b.HAVE_UCX_GPU_DEVICE_API)


def case_exceptions(nixl: Any, rec: Any) -> None:
    for word in [
        "NotPosted",
        "InvalidParam",
        "Backend",
        "NotFound",
        "Mismatch",
        "NotAllowed",
        "RepostActive",
        "Unknown",
        "NotSupported",
        "RemoteDisconnect",
        "Cancelled",
        "NoTelemetry",
    ]:
        kind = getattr(nixl.bindings, f"nixl{word}Error")
        rec.call(word, lambda kind=kind: (kind.__name__, kind.__bases__, kind("x").args))
    try:
        nixl.bindings.nixlXferDList(nixl.bindings.DRAM_SEG).index((1, 2, 3))
    except nixl.bindings.nixlNotFoundError as error:
        rec.check("the text begins with the code", str(error).startswith("NIXL_ERR_NOT_FOUND"))


def _parameters(function: Any) -> list[tuple]:
    shown = []
    for name, parameter in inspect.signature(function).parameters.items():
        default = parameter.default
        default = "none" if default is inspect.Parameter.empty else repr(default)
        shown.append((name, parameter.kind.name, default))
    return shown


def case_signatures(nixl: Any, rec: Any) -> None:
    for kind in ("nixl_agent", "nixl_agent_config"):
        for name in sorted(vars(getattr(nixl.api, kind))):
            function = inspect.getattr_static(getattr(nixl.api, kind), name)
            if inspect.isfunction(function) and (not name.startswith("_") or name == "__init__"):
                rec.call(f"{kind}.{name}", _parameters, function)
    for kind in ("nixl_prepped_dlist_handle", "nixl_xfer_handle"):
        handle = getattr(nixl.api, kind)
        rec.call(f"{kind}", lambda handle=handle: _parameters(handle.__init__))
        rec.call(f"{kind}.release", lambda handle=handle: _parameters(handle.release))
    rec.call("nixl_backend_handle", lambda: nixl.api.nixl_backend_handle)


def case_raw_agent_methods(nixl: Any, rec: Any) -> None:
    for kind in (
        "nixlAgent",
        "nixlAgentConfig",
        "nixlXferTelemetry",
        "nixlXferDList",
        "nixlRegDList",
        "nixlRemoteDList",
    ):
        public = [name for name in dir(getattr(nixl.bindings, kind)) if not name.startswith("_")]
        rec.call(kind, lambda public=public: public)


def case_utils(nixl: Any, rec: Any) -> None:
    utils = importlib.import_module("nixl._utils")
    one, two = utils.malloc_passthru(8192), utils.malloc_passthru(8192)
    rec.check("page-aligned", one % 4096 == 0 and two % 4096 == 0 and one and two)
    rec.call("ba_buf", utils.ba_buf, one, 8192)
    rec.call("ba_buf", utils.ba_buf, two, 8192)
    rec.call("verify_transfer", utils.verify_transfer, one, two, 8192)
    rec.call("free_passthru", utils.free_passthru, one)
    rec.call("free_passthru", utils.free_passthru, two)
