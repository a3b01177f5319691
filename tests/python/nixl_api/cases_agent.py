"""Configuration, constructors, backends and plugins."""

from typing import Any

import numpy as np


def case_config_defaults(nixl: Any, rec: Any) -> None:
    config = nixl.api.nixl_agent_config
    rec.call("defaults", lambda: vars(config()))
    sync = nixl.api.nixl_thread_sync_t.NIXL_THREAD_SYNC_RW
    made = config(False, True, 1234, True, 4, ["UCX"], sync)
    rec.call("by position", lambda: {k: v for k, v in vars(made).items() if k != "sync_mode"})
    rec.check("sync_mode", made.sync_mode is sync)
    rec.call("by name", lambda: vars(config(num_threads=2, backends=[], capture_telemetry=True)))
    rec.call("unknown name", lambda: config(threads=2))


def case_config_sync_mode(nixl: Any, rec: Any) -> None:
    config, sync = nixl.api.nixl_agent_config, nixl.api.nixl_thread_sync_t
    rec.call("a number", lambda: config(sync_mode=1))
    rec.call("a string", lambda: config(sync_mode="NIXL_THREAD_SYNC_RW"))
    rec.call("of the bindings", lambda: config(sync_mode=nixl.bindings.NIXL_THREAD_SYNC_RW))
    rec.call("members", lambda: list(sync.__members__))
    rec.check("default is none", sync.NIXL_THREAD_SYNC_DEFAULT is sync.NIXL_THREAD_SYNC_NONE)
    for mode in sync:
        made = nixl.api.nixl_agent(mode.name, config(sync_mode=mode))
        rec.call(f"agent with {mode.name}", lambda made=made: made.name)


def case_raw_config(nixl: Any, rec: Any) -> None:
    kind = nixl.bindings.nixlAgentConfig
    fields = [name for name in dir(kind()) if not name.startswith("_")]

    def show(config: Any) -> dict:
        return {name: str(getattr(config, name)) for name in fields}

    rec.call("defaults", lambda: show(kind()))
    rw = nixl.bindings.NIXL_THREAD_SYNC_RW
    for values in ((False,), (True, True), (True, True, 5), (True, True, 5, rw, 1, 2, 3, True)):
        rec.call(f"{len(values)} values", lambda values=values: show(kind(*values)))
    rec.call("by name", lambda: kind(useProgThread=True))
    config = kind()
    for name, value in (
        ("listenPort", -1),
        ("listenPort", 70000),
        ("listenPort", "x"),
        ("useProgThread", "x"),
        ("captureTelemetry", True),
        ("syncMode", 1),
        ("nonsense", 1),
    ):
        rec.call(f"{name} = {value!r}", setattr, config, name, value)


def case_agent_names(nixl: Any, rec: Any) -> None:
    agent = nixl.api.nixl_agent
    rec.call("empty", agent, "")
    rec.call("None", agent, None)
    rec.call("number", agent, 3)
    rec.call("bytes", lambda: agent(b"in bytes").name)
    rec.call("by name", lambda: agent(agent_name="n", nixl_conf=None, instantiate_all=False).name)
    rec.call("umlaut", lambda: agent("übertragung").name)


def case_agent_attributes(nixl: Any, rec: Any) -> None:
    made = nixl.api.nixl_agent("a")
    rec.call("name", lambda: made.name)
    rec.call("notifs", lambda: made.notifs)
    rec.call("backends", lambda: {name: type(handle) for name, handle in made.backends.items()})
    rec.call("backend_mems", lambda: made.backend_mems)
    rec.call("backend_options", lambda: made.backend_options)
    rec.call("nixl_mems", lambda: made.nixl_mems)
    rec.call("nixl_ops", lambda: made.nixl_ops)
    rec.call("agent", lambda: type(made.agent).__name__)
    rec.check(
        "UCX is a plugin", "UCX" in made.plugin_list and made.get_plugin_list() == made.plugin_list
    )


def case_agent_backends(nixl: Any, rec: Any) -> None:
    agent, config = nixl.api.nixl_agent, nixl.api.nixl_agent_config
    rec.call("none", lambda: list(agent("a", config(backends=[])).backends))
    rec.call("unknown", lambda: list(agent("a", config(backends=["NOPE"])).backends))
    rec.call("one of two", lambda: list(agent("a", config(backends=["NOPE", "UCX"])).backends))
    rec.call("twice", lambda: agent("a", config(backends=["UCX", "UCX"])))
    rec.call("threads", lambda: agent("a", config(num_threads=2)).get_backend_params("UCX"))
    rec.call(
        "instantiate_all beside a configuration",
        lambda: list(agent("a", config(), instantiate_all=True).backends),
    )
    rec.differs(
        "a plugin without its library",
        "raises nixl._bindings.nixlNotFoundError",
        "list('LIBFABRIC')",
        lambda: list(agent("a", config(backends=["LIBFABRIC"])).backends),
    )
    rec.differs(
        "a plugin that NIXL's wheel has not",
        "list()",
        "list('UCX_MO')",
        lambda: list(agent("a", config(backends=["UCX_MO"])).backends),
    )
    rec.differs(
        "storage",
        "list('POSIX')",
        "list()",
        lambda: list(agent("a", config(backends=["POSIX"])).backends),
    )


def case_create_backend(nixl: Any, rec: Any) -> None:
    made = nixl.api.nixl_agent("a", nixl.api.nixl_agent_config(backends=[]))
    rec.call("unknown", made.create_backend, "NOPE")
    rec.call("storage that is not there", made.create_backend, "HF3FS")
    rec.call("params of a wrong type", made.create_backend, "UCX", {"num_threads": 2})
    rec.call("known", made.create_backend, "UCX", {"num_threads": "2"})
    rec.call("twice", made.create_backend, "UCX")
    rec.call("params", made.get_backend_params, "UCX")
    rec.call(
        "by name",
        lambda: nixl.api.nixl_agent("b", nixl.api.nixl_agent_config(backends=[])).create_backend(
            backend="UCX", initParams={}
        ),
    )


def case_plugins(nixl: Any, rec: Any) -> None:
    made = nixl.api.nixl_agent("a")
    rec.call("memory of UCX", made.get_plugin_mem_types, "UCX")
    rec.call("parameters of UCX", made.get_plugin_params, "UCX")
    rec.call("memory of an unknown one", made.get_plugin_mem_types, "NOPE")
    rec.call("parameters of an unknown one", made.get_plugin_params, "NOPE")
    rec.call("memory of the backend", made.get_backend_mem_types, "UCX")
    rec.call("parameters of the backend", made.get_backend_params, "UCX")
    rec.call("memory of one that was not created", made.get_backend_mem_types, "POSIX")
    rec.call("parameters of one that was not created", made.get_backend_params, "POSIX")
    rec.call("raw", made.agent.getPluginParams, "UCX")
    rec.call("raw, unknown", made.agent.getPluginParams, "NOPE")
    rec.call("raw backend", made.agent.getBackendParams, made.backends["UCX"])
    rec.call("raw backend 0", made.agent.getBackendParams, 0)


def case_without_backends(nixl: Any, rec: Any) -> None:
    made = nixl.api.nixl_agent("a", nixl.api.nixl_agent_config(backends=[]))
    other = nixl.api.nixl_agent("b")
    memory = rec.buffer("m", 4096)
    row = [(memory.ctypes.data, 4096, 0, "")]
    empty = nixl.bindings.nixlRegDList(nixl.bindings.DRAM_SEG)
    full = nixl.bindings.nixlRegDList(nixl.bindings.DRAM_SEG, row)
    rec.call("register", made.register_memory, row, "DRAM")
    rec.call("deregister", made.deregister_memory, full)
    rec.call("metadata", made.get_agent_metadata)
    rec.call("partial metadata", made.get_partial_agent_metadata, full)
    rec.call("partial metadata of nothing", lambda: type(made.get_partial_agent_metadata(empty)))
    rec.call("add", made.add_remote_agent, other.get_agent_metadata())
    rec.call("notifications", made.get_new_notifs)
    rec.call("send", made.send_notif, "b", b"x")
    rec.call("send to oneself", made.send_notif, "a", b"x")
    rec.call("prepare", made.prep_xfer_dlist, "", np.array([[64, 64, 0]], dtype=np.uint64), "DRAM")
    rec.call("connect", made.make_connection, "b")
    rec.call("check", made.check_remote_metadata, "b")
    rec.call("a backend by name", made.get_new_notifs, ["UCX"])
