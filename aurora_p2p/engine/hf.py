"""The transformers engine: a plain forward with its KV cache, on small machines and in the demo.

Computes in float32 on a CPU (two to four times faster there than bf16), beside the checkpoint's own bits (weights.py);
on a GPU in the checkpoint's dtype, so that the GPU holds those bits itself (resident.py). Samples of prompts of equal
length decode together, so no row is ever padded; each prompt is read once, whatever the size of its group; a finished
row leaves the batch.
Sampling is seed-bound (sampling.py): the batch a sample happens to be in does not change it.

Not here: continuous batching, prefix caching across leases, tensor parallelism. That is what the vLLM engine is for.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import torch

from aurora_p2p.engine.holding import HoldingEngine
from aurora_p2p.engine.protocol import Step
from aurora_p2p.engine.requests import check_request
from aurora_p2p.engine.resident import ResidentWeights
from aurora_p2p.engine.sampling import draw
from aurora_p2p.engine.weights import Weights
from aurora_p2p.types import StateDigest
from aurora_p2p.wire.control import LeaseSample, Sampling
from aurora_p2p.wire.engine import Generated
from aurora_p2p.wire.fold import Source
from aurora_p2p.wire.manifest import Header, ModelConfig


@dataclass(slots=True)
class _Row:
    """One sample being drawn; index points into the request's samples."""

    index: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class HfEngine(HoldingEngine[Weights | ResidentWeights]):
    """RolloutEngine on transformers. max_batch: rows decoded at once, lowered where memory is short.

    resident: whether the model's memory is all there is of the weights; None: unless it is the CPU's.
    """

    def __init__(self, *, device: str = "cpu", max_batch: int = 64, resident: bool | None = None) -> None:
        super().__init__()
        self.device, self.max_batch = device, max_batch
        self._resident = device != "cpu" if resident is None else resident

    def _read(
        self, header: Header, body: Path, digest: StateDigest, deltas: Sequence[Source]
    ) -> Weights | ResidentWeights:
        if self._resident:
            return ResidentWeights.load(header, body, digest, self.device, deltas)
        return Weights.load(header, body, digest, deltas)

    def generate(
        self,
        sampling: Sampling,
        prompts: Sequence[Sequence[int]],
        samples: Sequence[LeaseSample],
        stop: threading.Event,
    ) -> Iterator[Step]:
        config = self._loaded().config
        check_request(config, sampling, prompts, samples)
        rows = self._rows_at_once(config, max((len(prompt) for prompt in prompts), default=0) + sampling.max_tokens)
        by_length: dict[int, list[int]] = {}
        for index, sample in enumerate(samples):
            by_length.setdefault(len(prompts[sample.prompt_index]), []).append(index)
        for _, indices in sorted(by_length.items()):
            for start in range(0, len(indices), rows):
                yield from self._decode(sampling, prompts, samples, indices[start : start + rows], stop)

    def _decode(
        self,
        sampling: Sampling,
        prompts: Sequence[Sequence[int]],
        samples: Sequence[LeaseSample],
        indices: list[int],
        stop: threading.Event,
    ) -> Iterator[Step]:
        """Decode samples whose prompts have one length, until all are finished."""
        decoding = _Decoding(self._loaded(), [prompts[samples[i].prompt_index] for i in indices])
        rows = [_Row(index) for index in indices]
        seeds = torch.tensor([samples[i].seed for i in indices], dtype=torch.int64, device=self.device)
        while not stop.is_set():
            tokens, logprobs = draw(decoding.logits, seeds, decoding.position, sampling.temperature)
            finished, going = [], []
            for slot, (token, logprob) in enumerate(zip(tokens.tolist(), logprobs.tolist(), strict=True)):
                row = rows[slot]
                row.tokens.append(token)
                row.logprobs.append(logprob)
                if token in sampling.stop_tokens:
                    finished.append(Generated(row.index, tuple(row.tokens), tuple(row.logprobs), "stop"))
                elif len(row.tokens) == sampling.max_tokens:
                    finished.append(Generated(row.index, tuple(row.tokens), tuple(row.logprobs), "length"))
                else:
                    going.append(slot)
            yield Step(len(tokens), finished)
            if not going:
                return
            if finished:
                decoding.keep(going)
                rows, seeds, tokens = [rows[slot] for slot in going], seeds[going], tokens[going]
            decoding.advance(tokens)

    def _rows_at_once(self, config: ModelConfig, positions: int) -> int:
        """Rows whose keys and values take at most half of the memory that is available; at least one."""
        row_bytes = 2 * config.layers * config.kv_heads * config.head_dim * positions * 4
        if self.device == "cpu":
            available: int = psutil.virtual_memory().available
        else:
            available = torch.cuda.mem_get_info(self.device)[0]
        return max(1, min(self.max_batch, available // 2 // row_bytes))


class _Decoding:
    """The model's state over rows of one length. `logits` are for the token after index `position`."""

    def __init__(self, weights: Weights | ResidentWeights, prompts: Sequence[Sequence[int]]) -> None:
        from transformers.cache_utils import DynamicCache

        self._model: Any = weights.model
        self._device = next(weights.model.parameters()).device
        self._cache = DynamicCache(config=self._model.config)
        unique = {tuple(prompt): slot for slot, prompt in enumerate(dict.fromkeys(map(tuple, prompts)))}
        self.logits = self._forward(torch.tensor(list(unique), dtype=torch.int64))
        self.position = len(prompts[0]) - 1
        self.keep([unique[tuple(prompt)] for prompt in prompts])

    def keep(self, slots: list[int]) -> None:
        """Go on with these rows, in this order; a row may be named more than once."""
        chosen = torch.tensor(slots, dtype=torch.int64, device=self._device)
        self._cache.batch_select_indices(chosen)
        self.logits = self.logits[chosen]

    def advance(self, tokens: torch.Tensor) -> None:
        """tokens: int64[rows], the next token of each row."""
        self.logits = self._forward(tokens[:, None])
        self.position += 1

    @torch.inference_mode()
    def _forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """tokens: int64[rows, new]. Returns float32[rows, vocabulary] after the last of them."""
        output = self._model(
            input_ids=tokens.to(self._device), past_key_values=self._cache, use_cache=True, logits_to_keep=1
        )
        logits: torch.Tensor = output.logits[:, -1].float()
        return logits
