"""What KvxferConnector makes of its options, references and messages: no engine is started."""

import json
import random
from types import SimpleNamespace
from typing import Any

import pytest
from vllm_config import config_of

pytest.importorskip("vllm", reason="vLLM is not installed: tests/python/environment has it")

# pylint: disable=wrong-import-position
from kvxfer.vllm import messages  # noqa: E402
from kvxfer.vllm.caches import Span  # noqa: E402
from kvxfer.vllm.division import Division  # noqa: E402
from kvxfer.vllm.reference import (  # noqa: E402
    BadReference,
    GroupBlocks,
    Reference,
    Worker,
    contents_of,
    from_runs,
    prompt_hash,
    release_of,
    to_runs,
)
from kvxfer.vllm.settings import Settings  # noqa: E402
from kvxfer.vllm.stats import Stats  # noqa: E402

_SEED = 50


_BAD: dict[str, tuple[dict[str, Any], str]] = {
    "not known": ({"prot": 1}, "prot is not known; there are"),
    "a mode that is none": ({"mode": "swap"}, "mode is 'swap', not one of pull, push"),
    "a text for a number": ({"lease": "long"}, "lease is 'long', not of type number"),
    "true for a number": ({"lease": True}, "lease is True, not of type number"),
    "no time": ({"timeout": 0}, "timeout is not above 0"),
    "a negative time": ({"drain": -1}, "drain is not from 0"),
    "too long a time": ({"lease": 1e9}, "lease is not above 0 and at most a day"),
    "half a retry": ({"retries": 1.5}, "retries is 1.5, not of type integer"),
    "a range the wrong way round": ({"port_range": "9-8"}, "port_range is '9-8'"),
    "a port that is none": ({"port_range": "70000"}, "port_range is '70000'"),
    "a list for a range": ({"port_range": [1, 2]}, "port_range is [1, 2], not of type text"),
    "no tcp": ({"backends": ["shm"]}, 'backends lacks "tcp"'),
    "a text for a list": ({"backends": "tcp"}, "backends is 'tcp', not of type list of texts"),
    "an agent's own listen": (
        {"agent_options": {"listen": "0.0.0.0:7000"}},
        """agent_options has 'listen': set "host" and "port_range" instead""",
    ),
    "backends among an agent's options": (
        {"agent_options": {"backends": ["tcp"]}},
        """agent_options has 'backends': set "backends" beside it""",
    ),
    "a list for an object": ({"agent_options": []}, "agent_options is [], not of type object"),
}


@pytest.mark.parametrize(("extra", "says"), _BAD.values(), ids=_BAD.keys())
def test_options_that_are_refused(extra: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError) as raised:
        Settings.of(config_of(extra))
    assert says in str(raised.value)


def test_ports() -> None:
    assert Settings.of(config_of()).ports() == [0]
    assert Settings.of(config_of({"port_range": "7000"})).ports() == [7000]
    assert Settings.of(config_of({"port_range": "7000-7002"})).ports() == [7000, 7001, 7002]


def _reference() -> Reference:
    return Reference(
        mode="pull",
        engine="engine-1",
        transfer="0123456789ab",
        tokens=95,
        fingerprint={"weights": "0a", "layout": "1b"},
        workers=(Worker("10.0.0.1:4711", "0" * 32), Worker("[fe80::1]:4711", "f" * 32)),
        division=Division(1, ((3, 1), (0, 2))),
        groups=(GroupBlocks(0, (7, 8, 9, 3)), GroupBlocks(2, (11,))),
        block_tokens=(32, 32),
    )


def test_references_go_through_json() -> None:
    params = json.loads(json.dumps(_reference().to_params()))
    assert Reference.from_params(params) == _reference()


def test_runs() -> None:
    randomness = random.Random(_SEED)
    for _ in range(200):
        ids = tuple(randomness.randrange(40) for _ in range(randomness.randrange(60)))
        assert from_runs(to_runs(ids), len(ids)) == ids
        if ids:
            with pytest.raises(BadReference, match="where there are"):
                from_runs(to_runs(ids), len(ids) - 1)
    assert to_runs([5, 6, 7, 2]) == [5, 3, 2, 1]


def test_references_that_are_anything(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever a proxy makes of one is refused, or is one that says the same as its text."""
    print(f"seed: {_SEED}")
    randomness = random.Random(_SEED)
    values: list[Any] = [
        None, True, -1, 0, 1, 1.5, 2**70, "", "x", "\n", "é" * 9, [], [1], [[1]], [["a", "b"]], {},
        {"a": 1}, [[0, 2**40]], [[-1, 1]], "a" * 1000, [None] * 2000,
    ]  # fmt: skip
    refused = 0
    for _ in range(5000):
        params: Any = json.loads(json.dumps(_reference().to_params()))
        for key in randomness.sample(sorted(params), randomness.randrange(1, 4)):
            if randomness.random() < 0.3:
                del params[key]
            else:
                params[key] = randomness.choice(values)
        try:
            taken = Reference.from_params(params)
        except BadReference:
            refused += 1
        else:
            assert taken.workers
            assert taken.mode in ("pull", "push")
    assert refused > 4000
    for anything in values:
        with pytest.raises(BadReference):
            Reference.from_params(anything)


def _request(tokens: list[int], **more: Any) -> Any:
    return SimpleNamespace(prompt_token_ids=tokens, **more)


def _named(lora: str) -> Any:
    return SimpleNamespace(lora_name=lora)


def test_prompts_of_embeddings_have_hashes_too() -> None:
    torch = pytest.importorskip("torch")
    embeddings = torch.arange(12, dtype=torch.bfloat16).reshape(3, 4)
    hashes = {
        prompt_hash(_request(None, prompt_embeds=each), 3)  # type: ignore[arg-type]
        for each in (embeddings, embeddings + 1, embeddings.float())
    }
    assert len(hashes) == 3


def test_contents_differ_with_where_their_blocks_begin() -> None:
    groups = (GroupBlocks(0, (1, 2)), GroupBlocks(1, (3,)))
    moved = (GroupBlocks(1, (1, 2)), GroupBlocks(1, (3,)))
    contents = {
        contents_of("h"),
        contents_of("g", groups, (32, 32)),
        contents_of("h", groups, (32, 32)),
        contents_of("h", moved, (32, 32)),
        contents_of("h", groups, (16, 32)),
    }
    assert len(contents) == 5


def test_a_reference_that_cannot_be_used_can_be_given_back() -> None:
    params = _reference().to_params()
    whole = release_of(params)
    assert whole == (_reference().transfer, _reference().workers)
    for key in params.keys() - {"transfer", "workers"}:
        for value in (None, -1, [], {}, "", "größe mit Leerzeichen"):
            assert release_of(params | {key: value}) == whole, (key, value)
    # As much as can be read of it.
    workers = [None, ["a"], [1, 2], ["h:1", "x"], *params["workers"], ["\ud800", "0" * 32]]
    assert release_of(params | {"workers": workers}) == whole
    for transfer in (None, 7, "", "a b", "\ud800", "x" * 121, ["x"]):
        assert release_of(params | {"transfer": transfer}) is None
    for workers in (None, 7, [], {"a": 1}, "ab", [[]]):
        assert release_of(params | {"workers": workers}) is None
    for nothing in (None, 7, "text", [], [params]):
        assert release_of(nothing) is None


def test_a_reference_is_not_unpacked_before_its_size_is_known() -> None:
    params = _reference().to_params()
    params["blocks"] = [[0, 1 << 24]] * 2
    with pytest.raises(BadReference, match="names 16777216 blocks"):
        Reference.from_params(params)
    with pytest.raises(BadReference, match="95 tokens, the prompt 94"):
        Reference.from_params(_reference().to_params(), 94)


def test_hashes_differ_with_all_that_the_kv_depends_on() -> None:
    image = SimpleNamespace(
        identifier="cat", mm_position=SimpleNamespace(offset=0, length=2)
    )
    other = SimpleNamespace(identifier="dog", mm_position=image.mm_position)
    lora = SimpleNamespace(lora_name="tuned", lora_int_id=1, lora_path="/a")
    hashes = [
        prompt_hash(_request([1, 2, 3]), 3),
        prompt_hash(_request([1, 2, 3]), 2),
        prompt_hash(_request([1, 2, 4]), 3),
        prompt_hash(_request([1, 2, 3], lora_request=lora), 3),
        prompt_hash(_request([1, 2, 3], cache_salt="s"), 3),
        prompt_hash(_request([1, 2, 3], mm_features=[image]), 3),
        prompt_hash(_request([1, 2, 3], mm_features=[other]), 3),
    ]
    hashes += [
        prompt_hash(_request([1, 2, 3], cache_salt="b|", lora_request=_named("a")), 3),
        prompt_hash(_request([1, 2, 3], cache_salt="", lora_request=_named("a|b")), 3),
    ]
    assert len(set(hashes)) == len(hashes)
    assert prompt_hash(_request([1, 2, 3, 4]), 3) == hashes[0]


def test_messages_in_pieces_and_in_any_order() -> None:
    randomness = random.Random(_SEED)
    big = {"do": "offer", "ids": [randomness.randrange(1 << 30) for _ in range(100_000)]}
    pieces = messages.encode(big)
    assert len(pieces) > 2
    small = messages.encode({"do": "renew"})
    reader = messages.Reader()
    mixed = pieces[:]
    randomness.shuffle(mixed)
    mixed.insert(1, small[0])
    read = [reader.read("peer", piece) for piece in mixed]
    assert [each for each in read if each is not None] == [{"do": "renew"}, big]
    with pytest.raises(ValueError, match="larger than peers take"):
        messages.encode({"ids": [randomness.randrange(1 << 60) for _ in range(500_000)]})


def test_what_is_no_message_is_none() -> None:
    randomness = random.Random(_SEED)
    reader = messages.Reader()
    whole = messages.encode({"do": "renew", "lease": "x"})[0]
    for _ in range(3000):
        broken = bytearray(whole[: randomness.randrange(len(whole) + 1)])
        for _ in range(randomness.randrange(3)):
            if broken:
                broken[randomness.randrange(len(broken))] = randomness.randrange(256)
        try:
            message = reader.read("peer", bytes(broken))
        except ValueError:
            continue
        assert message is None or isinstance(message, dict)


def test_spans_of_tokens_in_units() -> None:
    assert Span.of(0, 95, 32) == Span(0, 3)
    assert Span.of(64, 95, 32) == Span(2, 1)
    assert Span.of(64, 95, 1) == Span(64, 31)
    assert Span.of(96, 200, 32).after(2, 32, 32) == 1
    assert Span.of(96, 200, 1).after(2, 32, 1) == 32


def test_stats_add_up() -> None:
    one, two = Stats(), Stats()
    assert one.is_empty()
    assert one.take() is None
    one.observe("load_seconds", 0.5)
    one.observe("load_bytes", 1e6)
    two.observe("load_seconds", 1.5)
    two.observe("load_bytes", 3e6)
    two.count("failed_loads")
    said = one.aggregate(two).reduce()
    assert said["Loads"] == 2
    assert said["Failed loads"] == 1
    assert said["MB per load"] == 2
    taken = one.take()
    assert taken is not None
    assert one.is_empty()
    json.dumps(taken.to_dict())
