"""A Llama with random weights, and a paged KV cache of it. Imports torch and transformers."""

import dataclasses

import kvxfer
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

_SEED = 7


@dataclasses.dataclass(frozen=True)
class Shape:
    layers: int = 12
    hidden: int = 512
    heads: int = 8
    kv_heads: int = 2
    vocabulary: int = 2048
    positions: int = 2048
    block_tokens: int = 16
    blocks: int = 256  # of the paged cache

    @property
    def head_size(self) -> int:
        return self.hidden // self.heads


def elements(device: str) -> torch.dtype:
    """CPUs multiply bf16 slowly."""
    return torch.bfloat16 if "cuda" in device else torch.float32


class Llama:
    """The same in every process of a machine."""

    def __init__(self, shape: Shape, device: str) -> None:
        torch.manual_seed(_SEED)
        torch.set_num_threads(1)  # two processes would get in each other's way
        config = LlamaConfig(
            hidden_size=shape.hidden, intermediate_size=2 * shape.hidden,
            num_hidden_layers=shape.layers, num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads, vocab_size=shape.vocabulary,
            max_position_embeddings=shape.positions, bos_token_id=0, eos_token_id=1,
            # Weights this large make a token depend on every token before it; those of a usual
            # initialisation repeat one token whatever the cache holds.
            initializer_range=0.2,
        )  # fmt: skip
        self._shape, self._device = shape, device
        self._model = LlamaForCausalLM(config).to(device, elements(device)).eval()

    def prompt(self, tokens: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(tokens)
        drawn = torch.randint(2, self._shape.vocabulary, (1, tokens), generator=generator)
        return drawn.to(self._device)

    def prefill(self, tokens: int) -> tuple[DynamicCache, int]:
        """The cache of a prompt, and the token behind it."""
        cache = DynamicCache()
        return cache, self._step(self.prompt(tokens), cache)

    def decode(self, cache: DynamicCache, first: int, count: int) -> list[int]:
        """The tokens behind ``first``. They join the cache."""
        tokens = [first]
        for _ in range(count):
            tokens.append(self._step(torch.tensor([tokens[-1:]], device=self._device), cache))
        return tokens[1:]

    @torch.no_grad()
    def _step(self, tokens: torch.Tensor, cache: DynamicCache) -> int:
        logits = self._model(tokens, past_key_values=cache, use_cache=True).logits
        return int(logits[0, -1].argmax())


def _layer(cache: DynamicCache, index: int) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V, as this version of transformers holds them."""
    if hasattr(cache, "layers"):
        return cache.layers[index].keys, cache.layers[index].values
    return cache.key_cache[index], cache.value_cache[index]


class PagedCache:
    """For each layer a tensor [blocks, K and V, heads, tokens, elements]."""

    def __init__(self, shape: Shape, device: str) -> None:
        self._shape = shape
        size = (shape.blocks, 2, shape.kv_heads, shape.block_tokens, shape.head_size)
        self.layers = [
            torch.zeros(size, dtype=elements(device), device=device) for _ in range(shape.layers)
        ]

    def regions(self) -> list[kvxfer.PagedRegion]:
        return [kvxfer.PagedRegion.of(layer) for layer in self.layers]

    def blocks_of(self, tokens: int) -> int:
        return -(-tokens // self._shape.block_tokens)

    def clear(self) -> None:
        for layer in self.layers:
            layer.zero_()

    def put(self, cache: DynamicCache, ids: list[int]) -> None:
        """The whole cache of a request into these blocks."""
        rest = self._shape.block_tokens * len(ids)
        for index, layer in enumerate(self.layers):
            for which, states in enumerate(_layer(cache, index)):
                heads, tokens, size = states.shape[1:]
                padded = states.new_zeros(heads, rest, size)
                padded[:, :tokens] = states[0]
                blocks = padded.view(heads, len(ids), -1, size)
                layer[ids, which] = blocks.transpose(0, 1)

    def take(self, ids: list[int], tokens: int) -> DynamicCache:
        """What these blocks hold of a request."""
        cache = DynamicCache()
        for index, layer in enumerate(self.layers):
            states = []
            for which in range(2):
                blocks = layer[ids, which].transpose(0, 1)
                whole = blocks.reshape(blocks.shape[0], -1, blocks.shape[3])
                states.append(whole[None, :, :tokens].contiguous())
            cache.update(*states, index)
        return cache
