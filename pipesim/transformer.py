"""A transformer's shape -> a profile of its layers, with times estimated from FLOPs.

For a model that nobody has measured yet. The formulas are those of `transformer_rows`.
"""

from dataclasses import dataclass
from typing import Any

from pipesim.base.checks import LEAST_RATE, MOST_MS, check_count, is_number
from pipesim.base.text import count_text, text_table
from pipesim.layers import LayerProfile
from pipesim.transformer_rows import (
    Row,
    embedding_row,
    head_row,
    layer_row,
    shared,
    vocabulary_bytes,
)

# What is a multiple of what.
MULTIPLES = (
    ("hidden", "heads"),
    ("heads", "kv_heads"),
    ("heads", "tensor_parallel"),
    ("kv_heads", "tensor_parallel"),
    ("ffn", "tensor_parallel"),
)
PROFILE_SIZES = (
    "stash_bytes",
    "wgrad_stash_bytes",
    "selective_stash_bytes",
    "param_bytes",
    "output_bytes",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """The shape of a transformer, and of the micro-batches it is trained on.

    Parameters
    ----------
    layers, hidden, heads, vocabulary
        Number of layers, width, attention heads, size of the vocabulary as padded.
    sequence, microbatch
        Tokens of a sequence, sequences of a micro-batch.
    ffn
        Width of the MLP; 0: 4 x hidden.
    kv_heads
        Heads of keys and values; 0: as many as heads.
    gated
        Whether it is built as Llama is: a gated MLP of three matrices, RMS norms, no biases, no
        learned positions, no dropout. Otherwise as GPT is: two matrices, layer norms, biases,
        learned positions, dropout.
    tied
        Whether the head's matrix is the embedding's. It counts once in `parameters`, but the
        head has its bytes, too: the last stage holds a copy wherever it is not the first.
    causal
        Whether attention skips what its mask hides: half its FLOPs.
    flash
        Whether attention keeps none of its scores and rebuilds them in the backward, which takes
        2.5 times its forward, not 2. Selective recompute has nothing left to do then.
    tensor_parallel
        Ranks t that share each layer; what they send each other takes no time here.
    sequence_parallel
        Whether they share what lies between the matrices, too.
    element_bytes
        Of a parameter and of an activation.

    Raises
    ------
    ValueError
        If a count is not a whole number of at least 1, or one is no multiple of another.

    Examples
    --------
    >>> print(Transformer(layers=80, hidden=8192, ffn=28672, gated=True, heads=64, kv_heads=8,
    ...                   vocabulary=128256, sequence=8192, flash=True))
    transformer: 80 layers, hidden 8192, ffn 28672 gated, 64 heads, 8 of keys and values
    vocabulary 128256; a micro-batch of 1 x 8192 tokens
    70.55 billion parameters, 141.1 GB; 4032 TFLOP a micro-batch, forward and backward
    kind       count  parameters  F GFLOP  I GFLOP  W GFLOP  param MB  stash MB  selective MB  ...
    embedding      1  1050673152      0.1      0.0      0.1    2101.3       0.0           0.0  ...
    layer         80   855654400  16217.8  19516.3  14018.8    1711.3    2248.1        2248.1  ...
    head           1  1050681344  17214.2  17214.2  17214.2    2101.4    4471.1        4471.1  ...
    """

    layers: int
    hidden: int
    heads: int
    vocabulary: int
    sequence: int
    microbatch: int = 1
    ffn: int = 0
    kv_heads: int = 0
    gated: bool = False
    tied: bool = False
    causal: bool = False
    flash: bool = False
    tensor_parallel: int = 1
    sequence_parallel: bool = False
    element_bytes: int = 2

    def __post_init__(self) -> None:
        counts = ("layers", "hidden", "heads", "vocabulary", "sequence", "microbatch")
        for name in (*counts, "tensor_parallel", "element_bytes"):
            check_count(name, getattr(self, name))
        for name, default in (("ffn", 4 * self.hidden), ("kv_heads", self.heads)):
            if getattr(self, name) == 0:
                object.__setattr__(self, name, default)
            check_count(name, getattr(self, name))
        multiples = list(MULTIPLES)
        if self.sequence_parallel:
            multiples.append(("sequence", "tensor_parallel"))
        for many, few in multiples:
            if getattr(self, many) % getattr(self, few):
                raise ValueError(
                    f"{many} = {getattr(self, many)} is no multiple of {few} = {getattr(self, few)}"
                )

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch."""
        return self.microbatch * self.sequence

    @property
    def parameters(self) -> int:
        """Parameters of the whole model; a tied matrix counts once."""
        embedding, layer, head = (row.parameters for row in self.rows())
        twice = self.vocabulary * self.hidden if self.tied else 0
        return embedding + self.layers * layer + head - twice

    @property
    def flops(self) -> int:
        """FLOPs of one micro-batch's forward and backward through the whole model."""
        embedding, layer, head = (sum(row.flops) for row in self.rows())
        return embedding + self.layers * layer + head

    @property
    def message_bytes(self) -> int:
        """What one tensor-parallel rank sends to the next stage for a micro-batch."""
        return shared(self, self.element_bytes * self.tokens * self.hidden)

    @property
    def tied_bytes(self) -> int:
        """The tied matrix on one tensor-parallel rank, 0 if none is: see `Training`."""
        return vocabulary_bytes(self) if self.tied else 0

    def rows(self) -> tuple[Row, Row, Row]:
        """Return what the embedding, each layer, and the head with the loss take.

        Examples
        --------
        >>> gpt = Transformer(layers=96, hidden=12288, heads=96, vocabulary=51200, sequence=2048)
        >>> embedding, layer, head = gpt.rows()
        >>> layer.flops.forward == 24 * 2048 * 12288**2 + 4 * 2048**2 * 12288
        True
        >>> layer.stash_bytes == 34 * 2048 * 12288 + 5 * 96 * 2048**2
        True
        """
        return embedding_row(self), layer_row(self), head_row(self)

    def profile(
        self, peak_tflops: float, efficiency: float, memory_gb_s: float | None = None
    ) -> LayerProfile:
        """Return the embedding, the layers, and the head, with times estimated from FLOPs.

        A time is FLOPs / (peak x efficiency) / t. `selective_ms` is the time of attention between
        its matrices, which selective recompute repeats.

        Parameters
        ----------
        peak_tflops
            Of one device [10^12 FLOP/s].
        efficiency
            The share of it that is reached, up to 1.
        memory_gb_s
            If given, attention takes besides the time to read and write its scores at this
            bandwidth [10^9 bytes a second], as it does with kernels that are not fused: often
            more than its FLOPs take.

        Raises
        ------
        ValueError
            If the peak or the bandwidth is not a positive number, or the efficiency above 1.

        Examples
        --------
        >>> gpt = Transformer(layers=2, hidden=4096, heads=32, vocabulary=131072, sequence=4096)
        >>> profile = gpt.profile(peak_tflops=312, efficiency=0.5)
        >>> for name, forward_ms in zip(profile.names, profile.forward_ms):
        ...     print(f"{name:9} {forward_ms:6.3f}")
        embedding  0.000
        layer 0   12.334
        layer 1   12.334
        head      28.193
        >>> profile.source
        'estimated from FLOPs at 312 TFLOP/s x 0.5'
        """
        _check_rate("peak_tflops", peak_tflops, MOST_MS)
        _check_rate("efficiency", efficiency, 1)
        source = f"estimated from FLOPs at {peak_tflops:g} TFLOP/s x {efficiency:g}"
        if memory_gb_s is not None:
            _check_rate("memory_gb_s", memory_gb_s, MOST_MS)
            source += f", scores moved at {memory_gb_s:g} GB/s"

        def time_ms(flops: int, moved_bytes: int) -> float:
            moving = 0.0 if memory_gb_s is None else moved_bytes / (memory_gb_s * 1e6)
            return flops / (self.tensor_parallel * peak_tflops * efficiency * 1e9) + moving

        embedding, layer, head = self.rows()
        rows = (embedding, *(layer,) * self.layers, head)
        times = [list(map(time_ms, row.flops, row.moved_bytes)) for row in rows]
        forward, input_grad, weight_grad = zip(*times, strict=True)
        sizes: dict[str, Any] = {
            name: tuple(getattr(row, name) for row in rows) for name in PROFILE_SIZES
        }
        return LayerProfile(
            forward_ms=forward,
            input_grad_ms=input_grad,
            weight_grad_ms=weight_grad,
            selective_ms=tuple(time_ms(row.rebuilt_flops, row.moved_bytes.forward) for row in rows),
            names=("embedding", *(f"layer {number}" for number in range(self.layers)), "head"),
            labels={"kind": tuple(row.kind for row in rows)},
            source=source,
            **sizes,
        )

    def __str__(self) -> str:
        rows = self.rows()
        columns = {
            "kind": [row.kind for row in rows],
            "count": ["1", str(self.layers), "1"],
            "parameters": [str(row.parameters) for row in rows],
        }
        for place, part in enumerate("FIW"):
            columns[f"{part} GFLOP"] = [f"{row.flops[place] / 1e9:.1f}" for row in rows]
        for title, name in (
            ("param MB", "param_bytes"),
            ("stash MB", "stash_bytes"),
            ("selective MB", "selective_stash_bytes"),
            ("I to W MB", "wgrad_stash_bytes"),
            ("output MB", "output_bytes"),
        ):
            columns[title] = [f"{getattr(row, name) / 1e6:.1f}" for row in rows]
        t = self.tensor_parallel
        ranks = f"; bytes of one of {t} tensor-parallel ranks" if t > 1 else ""
        return (
            f"transformer: {count_text(self.layers, 'layer')}, hidden {self.hidden}, "
            f"ffn {self.ffn}{' gated' if self.gated else ''}, "
            f"{count_text(self.heads, 'head')}, {self.kv_heads} of keys and values\n"
            f"vocabulary {self.vocabulary}{' tied' if self.tied else ''}; "
            f"a micro-batch of {self.microbatch} x {self.sequence} tokens{ranks}\n"
            f"{self.parameters / 1e9:.4g} billion parameters, "
            f"{self.parameters * self.element_bytes / 1e9:.4g} GB; "
            f"{self.flops / 1e12:.4g} TFLOP a micro-batch, forward and backward\n"
            f"{text_table(columns, left=('kind',))}"
        )


def _check_rate(name: str, value: Any, most: float) -> None:
    if not (is_number(value) and LEAST_RATE <= value <= most):
        limit = "1" if most == 1 else "10^15"
        raise ValueError(f"{name} = {value!r} is not a number from 10^-9 to {limit}")
