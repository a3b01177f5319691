"""The connector is written against the vLLM that is installed; whether it fits the next one, of
which only the source can be had here. Once that one is installed the version in fetch.py is the one
after, and what is listed here as reviewed begins anew."""

from __future__ import annotations

import ast
import importlib.metadata
from pathlib import Path

import fetch
import pytest
from drift import BASE, KV, Pair
from parsed import Tree

_BINDINGS = Path(__file__).parents[3] / "bindings/python"
_CONNECTOR = ("kvxfer.vllm.connector", "KvxferConnector")
_OUTPUTS = "vllm.v1.outputs"
_METRICS = f"{KV}.v1.metrics"
_RUNNER = "vllm.v1.worker.kv_connector_model_runner_mixin"
_SCHEDULER = "vllm.v1.core.sched.scheduler"
_REQUEST = "vllm.v1.request"

# What vLLM 0.33 has changed, and that was looked at: a version with more is to be looked at too.
_REVIEWED = {
    (BASE, "KVConnectorBase_V1"): {
        # Engines that sleep: KV caches are unmapped and mapped anew.
        "+supports_sleep_mode",
        "+unregister_kv_caches",
        "+restore_kv_caches",
    },
    (BASE, "SupportsHMA"): set(),
    (BASE, "KVConnectorTransferResults"): set(),
    (BASE, "KVConnectorMetadata"): set(),
    (BASE, "KVConnectorHandshakeMetadata"): set(),
    (BASE, "KVConnectorWorkerMetadata"): set(),
    (_METRICS, "KVConnectorStats"): set(),
    (_METRICS, "KVConnectorPromMetrics"): set(),
    (_OUTPUTS, "KVConnectorOutput"): set(),
    ("vllm.config.kv_transfer", "KVTransferConfig"): set(),
}
_REVIEWED_CALLERS = {
    # Sleep: asks whether it can, and tells the workers; addresses are handed on again after it.
    "vllm.config.vllm.VllmConfig._verify_kv_transfer_compat",
    "vllm.v1.engine.core.EngineCore.__init__",
    "vllm.v1.engine.core.EngineCore._set_kv_connector_handshake_metadata",
    "vllm.v1.worker.gpu_worker.Worker.discard",
    "vllm.v1.worker.gpu_worker.Worker.sleep",
    "vllm.v1.worker.gpu_worker.Worker.wake_up",
    # With a draft model, wait_for_save and clear_connector_metadata are after get_transfer_results.
    "vllm.v1.worker.gpu.kv_connector.ActiveKVConnector.finalize_step",
    # HiSparse: update_state_after_alloc is steps later than get_num_new_matched_tokens, or never.
    "vllm.v1.core.sched.scheduler.Scheduler._drain_deferred_loads",
}


def _installed() -> Path:
    try:
        return Path(str(importlib.metadata.distribution("vllm").locate_file("")))
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("vLLM is not installed: tests/python/environment/python-env has it")


def _tree(folder: Path) -> Tree:
    return Tree({"vllm": folder, "kvxfer": _BINDINGS})


@pytest.fixture(scope="module")
def installed() -> Tree:
    return _tree(_installed())


@pytest.fixture(scope="module")
def following() -> Tree:
    try:
        return _tree(fetch.fetch())
    except fetch.Unavailable as why:
        pytest.skip(str(why))


@pytest.fixture(scope="module")
def pair(installed: Tree, following: Tree) -> Pair:
    package = _BINDINGS / "kvxfer/vllm"
    names = sorted(path.stem for path in package.glob("*.py"))
    own = ["kvxfer.vllm" + (f".{name}" if name != "__init__" else "") for name in names]
    return Pair(installed, following, own)


def test_what_is_imported_is_there(pair: Pair) -> None:
    assert pair.imports() == []


def test_no_abstract_method_is_missing(pair: Pair) -> None:
    assert pair.abstract() == []


def test_overrides_take_what_vllm_passes(pair: Pair) -> None:
    assert pair.overrides() == []


def test_what_is_read_and_called_is_there(pair: Pair) -> None:
    assert pair.uses() == []


def test_enough_can_be_told(pair: Pair) -> None:
    """The connector would pass as well if no expression of it could be told."""
    targets = [use.target or "" for use in pair.uses_in(pair.old).values()]
    names = {target.rpartition(".")[2] for target in targets}
    assert names >= {
        "KVConnectorOutput",
        "KVConnectorTransferResults",
        "KVTransferConfig",
        "Request",
    }


def test_the_connector_has_what_vllm_calls(pair: Pair) -> None:
    assert pair.calls(pair.new.class_named(*_CONNECTOR)) == []


def test_plugins_are_found_under_the_same_name(following: Tree) -> None:
    found = following.find("vllm.plugins", "DEFAULT_PLUGINS_GROUP")
    assert found is not None
    assert ast.unparse(found.node) == "DEFAULT_PLUGINS_GROUP = 'vllm.general_plugins'"


def test_what_vllm_has_changed_was_reviewed(pair: Pair) -> None:
    found = {each: pair.changes(*each) for each in _REVIEWED}
    for (module, name), changes in found.items():
        print(f"{module}.{name}:", *sorted(changes) or ["as it was"])
    assert found == _REVIEWED


def test_calls_that_vllm_has_changed_were_reviewed(pair: Pair) -> None:
    found = pair.changed_callers()
    print("calls on a connector have changed in:", *sorted(found), sep="\n  ")
    assert found == _REVIEWED_CALLERS


# --- that these can fail: of a connector as small as can be, and of an altered source of vLLM ---

_SMALL = f"""
from {BASE} import KVConnectorBase_V1, KVConnectorTransferResults, SupportsHMA
from {_METRICS} import KVConnectorStats
from vllm.config import VllmConfig
from vllm.v1.metrics.cache_hit_source import CacheHitSource
from {_OUTPUTS} import KVConnectorOutput
from {_REQUEST} import Request

class Stats(KVConnectorStats):
    def __init__(self):
        self.data = {{}}

class Small(KVConnectorBase_V1, SupportsHMA):
    _cache_hit_source = CacheHitSource.P2P

    def __init__(self, vllm_config: VllmConfig, role, kv_cache_config):
        super().__init__(vllm_config, role, kv_cache_config)
        config = vllm_config.kv_transfer_config
        self._name = config.engine_id

    def start_load_kv(self, forward_context, **kwargs): ...
    def wait_for_layer_load(self, layer_name): ...
    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs): ...
    def wait_for_save(self): ...
    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens):
        salt = getattr(request, "cache_salt", None)
        request.max_tokens = 1
        return request.num_prompt_tokens, True
    def update_state_after_alloc(self, request, blocks, num_external_tokens): ...
    def build_connector_meta(self, scheduler_output): ...
    def update_connector_output(self, connector_output: KVConnectorOutput):
        for each in connector_output.finished_recving or ():
            print(each)
    def request_finished_all_groups(self, request, block_ids): return False, None
    def get_transfer_results(self, finished_req_ids):
        return KVConnectorTransferResults(set(), set(), failed_recving=set())
"""


@pytest.fixture(scope="module")
def following_small(following: Tree) -> Tree:
    return following.with_text("small", _SMALL)


@pytest.fixture(scope="module")
def installed_small(installed: Tree) -> Tree:
    return installed.with_text("small", _SMALL)


def _doctored(tree: Tree, name: str, was: str, becomes: str) -> Tree:
    module = tree.module(name)
    assert module is not None
    assert was in module.text
    return tree.with_text(name, module.text.replace(was, becomes))


def _complaints(old: Tree, new: Tree) -> list[str]:
    pair = Pair(old, new, ["small"])
    return [
        *pair.imports(),
        *pair.abstract(),
        *pair.overrides(),
        *pair.uses(),
        *pair.calls(new.class_named("small", "Small")),
    ]


def test_a_small_connector_fits_both(installed_small: Tree, following_small: Tree) -> None:
    assert _complaints(installed_small, installed_small) == []
    assert _complaints(installed_small, following_small) == []


_SAVE = "def wait_for_save(self)"
_MISFITS = [
    (BASE, "class KVConnectorTransferResults", "class Results", "no KVConnectorTransferResults"),
    (BASE, "def shutdown(", "@abstractmethod\n    def shutdown(", "small.Small lacks shutdown"),
    (BASE, _SAVE, "def wait(self)", "wait_for_save: vLLM has it no more"),
    (BASE, _SAVE, f"@property\n    {_SAVE}", "should be a property, is a method"),
    (BASE, "finished_req_ids: set[str]", "ended: set[str]", "(ended) of (ended) does not fit"),
    (BASE, "layer_name: str)", "layer_name: str, stream=None)", "(layer_name, stream) of"),
    (BASE, '"KVCacheBlocks", num', '"KVCacheBlocks", group, num', "update_state_after_alloc: ("),
    (BASE, "failed_recving: set", "failed_loads: set", "takes other arguments"),
    (BASE, "    finished_sending:", "    early: set = ()\n    finished_sending:", "became"),
    (BASE, "role: KVConnectorRole,", "role: KVConnectorRole, rank: int,", "other arguments"),
    (BASE, "self._role = role", "self._name = role", "_name: vLLM has one of its own now"),
    ("vllm.config.kv_transfer", "engine_id", "engine", "config.engine_id"),
    ("vllm.config.vllm", "class VllmConfig:", "class Config:", "VllmConfig) is not among"),
    ("vllm.v1.metrics.cache_hit_source", "P2P", "PEER", "CacheHitSource.P2P"),
    (_OUTPUTS, "finished_recving:", "received:", "connector_output.finished_recving"),
    (_REQUEST, "self.num_prompt_tokens", "self.num_prompt", "request.num_prompt_tokens"),
    (_REQUEST, "self.cache_salt", "self.salt", "getattr(request, 'cache_salt', None)"),
    (_REQUEST, "self.max_tokens", "self.most_tokens", "request.max_tokens"),
    (_RUNNER, "kv_connector.wait_for_save()", "kv_connector.flush()", "needs small.Small.flush"),
    (_RUNNER, ".wait_for_save()", ".wait_for_save(True)", "wait_for_save(True) does not fit"),
    (_SCHEDULER, "self.connector.take_events", "self.connector.take", "needs small.Small.take"),
]


@pytest.mark.parametrize(("module", "was", "becomes", "complaint"), _MISFITS)
def test_a_change_of_vllm_that_does_not_fit_is_told(
    installed_small: Tree,
    following_small: Tree,
    module: str,
    was: str,
    becomes: str,
    complaint: str,
) -> None:
    found = _complaints(installed_small, _doctored(following_small, module, was, becomes))
    assert any(complaint in each for each in found), found


def test_a_module_that_is_not_fetched_is_told(installed_small: Tree, following: Tree) -> None:
    text = _SMALL + "from vllm.nowhere import Nothing\n"
    found = Pair(installed_small, following.with_text("small", text), ["small"]).imports()
    assert [each for each in found if "vllm.nowhere is not there" in each], found


def test_changes_and_other_calls_are_told(following: Tree) -> None:
    altered = _doctored(following, BASE, "def shutdown(", "def close(")
    altered = _doctored(altered, BASE, '"""Reset the connector', '"""Empty the connector')
    altered = _doctored(altered, _RUNNER, "kv_connector.wait_for_save()", "pass")
    pair = Pair(following, altered, [])
    assert pair.changes(BASE, "KVConnectorBase_V1") == {"-shutdown", "+close", "~reset_cache"}
    assert pair.changed_callers() == {
        f"{_RUNNER}.KVConnectorModelRunnerMixin.{name}"
        for name in ("finalize_kv_connector", "_get_kv_connector_output")
    }
