"""What ``kv_transfer_params`` ask this engine for. Whatever they ask for that it does not do has a line
in the log, with its name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvxfer.vllm.log import logger
from kvxfer.vllm.reference import KEY, MODES, is_name

# What a proxy may say to a prefill engine under KEY.
_WISHES = ("mode", "transfer")
# Of vLLM's other connectors; one beside this, in a MultiConnector, may well do them.
_FOR_OTHERS = (
    "transfer_id",
    "remote_bootstrap_addr",
    "disagg_spec",
    "remote_kv_source",
    "max_load_tokens",
    "max_offload_tokens",
    "hidden_states_path",
    "include_output_tokens",
)


@dataclass(frozen=True)
class Asked:
    prefill: bool = False
    """To keep the blocks of the request for a decode engine, or write them there."""
    load: bool = False
    """Blocks that the params refer to."""
    refused: str = ""
    """Why they are not loaded though that is asked for."""


class Wishes:
    """``why_no_push``: empty, or why this engine cannot write to decode. ``loads``: whether its
    kv_role has it load. ``bidirectional``: whether it loads earlier turns of what it prefills."""

    def __init__(self, why_no_push: str, loads: bool, bidirectional: bool = False) -> None:
        self._why_no_push = why_no_push
        self._loads = loads
        self._bidirectional = bidirectional
        self._said: set[str] = set()

    def read(self, request: str, params: Mapping[str, Any]) -> Asked:
        self._name_what_is_for_others(params)
        prefill, load = bool(params.get("do_remote_decode")), bool(params.get("do_remote_prefill"))
        if prefill:
            for complaint in [] if load else self._about_prefill(params):
                logger.warning("kvxfer: request %s: %s", request, complaint)
        if not prefill and not load:
            for key in (KEY, "remote_block_ids"):
                if params.get(key):
                    logger.warning(
                        "kvxfer: request %s: kv_transfer_params has %r and neither "
                        "do_remote_prefill nor do_remote_decode: it is computed here",
                        request,
                        key,
                    )
        return Asked(prefill, load, self._why_no_load(prefill, params) if load else "")

    def _why_no_load(self, prefill: bool, params: Mapping[str, Any]) -> str:
        if prefill and not self._bidirectional:
            return (
                "kv_transfer_params asks for do_remote_prefill and do_remote_decode at once, and this "
                'engine does not load earlier turns: set "bidirectional" in kv_connector_extra_config, '
                "here and in decode, or ask for one of them"
            )
        if not self._loads:
            return (
                'this engine does not load, for its kv_role is "kv_producer": start it as '
                '"kv_consumer" or "kv_both"'
            )
        if not isinstance(params.get(KEY), dict):
            others = [str(key)[:50] for key in params if str(key).startswith("remote_")]
            return (
                f"kv_transfer_params has no reference of a KvxferConnector ({KEY!r}), but "
                f"{', '.join(sorted(others)[:10]) or 'nothing'}: give prefill the same connector"
            )
        return ""

    def _about_prefill(self, params: Mapping[str, Any]) -> list[str]:
        found = []
        if params.get("remote_block_ids"):
            found.append(
                "kv_transfer_params has remote_block_ids with do_remote_decode: blocks of an earlier "
                "turn are not loaded from decode (NixlConnector's bidirectional_kv_xfer), they are "
                "computed"
            )
        wish = params.get(KEY)
        if wish is None:
            return found
        if not isinstance(wish, dict):
            return [*found, f"kv_transfer_params[{KEY!r}] is no object, and ignored"]
        for key in wish.keys() - set(_WISHES):
            found.append(f"kv_transfer_params[{KEY!r}] has {str(key)[:100]!r}, which is ignored")
        mode, transfer = wish.get("mode", MODES[0]), wish.get("transfer")
        if mode not in MODES:
            modes = ", ".join(MODES)
            found.append(f"mode is {str(mode)[:100]!r}, not one of {modes}: decode reads")
        if transfer is not None and not is_name(transfer):
            found.append("transfer is no name that references can carry, and ignored")
        if self._why_no_push and (mode == "push" or transfer is not None):
            found.append(f"{self._why_no_push}: decode has to read, by the params of the answer")
        return found

    def _name_what_is_for_others(self, params: Mapping[str, Any]) -> None:
        for key in _FOR_OTHERS:
            if params.get(key) and key not in self._said:
                self._said.add(key)
                logger.warning(
                    "kvxfer: kv_transfer_params has %r, which is for another connector than this; "
                    "said once",
                    key,
                )
