"""A transformer's shape -> what its embedding, layers and head take, by formula.

For a model that nobody has measured yet: FLOPs, parameters, bytes, and a profile of its layers
with times estimated from FLOPs.

For one micro-batch of b sequences of s tokens; hidden h, a heads, g of keys and values, MLP of
width f, vocabulary V, t tensor-parallel ranks, 2 bytes an element, sp = sequence parallelism:

    matrices    N = h(h + 2hg/a) + h^2 + 2hf; gated 3hf             12h^2 for f = 4h, g = a
    a layer     F = 2bsN + C, I = 2bsN + 2C, W = 2bsN               C = 4bs^2 h, causal half of it
                flash: I = 2bsN + 2.5C
    embedding   F = bsh, I = 0, W = 2bsh
    head, loss  F = I = W = 2bshV
    a layer keeps
    none        sbh(10 + 24/t + 5as/(ht)),  sp: sbh/t (34 + 5as/h)
    selective   sbh(10 + 24/t),             sp: 34 sbh/t
    full        2sbh,                       sp: 2sbh/t              what the layer before puts out
    I to W      sbh(8 + 24/t),              sp: 32 sbh/t
    embedding   sbh,                        sp: sbh/t               its dropout's mask
    head        4sbh + 4sbV/t,              sp: 4sbh/t + 4sbV/t     logits in 32 bits

Left out, since they are small: FLOPs of norms, activations, softmax and loss, token numbers,
statistics of norms and of flash attention.

Sources: FLOPs of F, and bytes kept from it, Korthikanti et al., Reducing Activation Recomputation
in Large Transformer Models, 2022; I, W, and the bytes between them, Qi et al., Zero Bubble
Pipeline Parallelism, 2024, Table 1; the embedding, Yeung et al., Balancing Pipeline Parallelism
with Vocabulary Parallelism, 2024, Table 4. Their bytes are those of f = 4h and g = a; here they
are added up tensor by tensor, for other shapes.
"""

from dataclasses import dataclass

from pipesim.base.checks import check_count
from pipesim.base.text import count_text
from pipesim.pipeline.layers import LayerProfile
from pipesim.pipeline.model_rows import NOTHING, Parts, Row, estimated_profile, rows_table

MASK_BYTES = 1  # an element of a dropout mask
LOGIT_BYTES = 4
# What is a multiple of what.
MULTIPLES = (
    ("hidden", "heads"),
    ("heads", "kv_heads"),
    ("heads", "tensor_parallel"),
    ("kv_heads", "tensor_parallel"),
    ("ffn", "tensor_parallel"),
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
        Bytes of a parameter and of an activation.

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
            Peak rate of one device [10^12 FLOP/s].
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
        embedding, layer, head = self.rows()
        return estimated_profile(
            (embedding, *(layer,) * self.layers, head),
            ("embedding", *(f"layer {number}" for number in range(self.layers)), "head"),
            self.tensor_parallel,
            peak_tflops,
            efficiency,
            memory_gb_s,
        )

    def __str__(self) -> str:
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
            f"{rows_table(self.rows(), (1, self.layers, 1))}"
        )


def embedding_row(shape: Transformer) -> Row:
    """Return the embedding, with learned positions where there are any."""
    elements = shape.tokens * shape.hidden
    positions = 0 if shape.gated else shape.sequence * shape.hidden
    mask = shared(shape, _mask_bytes(shape) * elements)
    return Row(
        "embedding",
        flops=Parts(elements, 0, 2 * elements),
        parameters=shape.vocabulary * shape.hidden + positions,
        param_bytes=vocabulary_bytes(shape) + shape.element_bytes * positions,
        stash_bytes=mask,
        selective_stash_bytes=mask,
        wgrad_stash_bytes=shape.message_bytes,  # the gradient of what it puts out
        output_bytes=shape.message_bytes,
    )


def layer_row(shape: Transformer) -> Row:
    """Return one of the layers."""
    h, f, e, tokens = shape.hidden, shape.ffn, shape.element_bytes, shape.tokens
    qkv = h + 2 * h * shape.kv_heads // shape.heads
    into = 2 if shape.gated else 1  # matrices into the MLP; one leads out of it
    matrices = h * qkv + h * h + (into + 1) * h * f
    per_column, whole = matrices, 2 * _norm(shape)
    if not shape.gated:  # biases: where the outputs are split, they are, too
        per_column, whole = per_column + qkv + f, whole + 2 * h
    product = 2 * tokens * matrices
    core = 4 * tokens * shape.sequence * h // (2 if shape.causal else 1)
    # Inputs of norms and matrices, two masks; queries, keys, values, what comes of them, and
    # what is inside the MLP.
    kept = shared(shape, tokens * h * (4 * e + 2 * _mask_bytes(shape)))
    kept += split(shape, tokens * e * (qkv + h + (into + 1) * f))
    # Inputs of the matrices, and the gradients of what they put out.
    kept_for_w = shared(shape, tokens * h * 4 * e)
    kept_for_w += split(shape, tokens * e * (h + f + qkv + into * f))
    scores_kept, moved = _scores(shape)
    return Row(
        "layer",
        flops=Parts(product + core, product + core * (5 if shape.flash else 4) // 2, product),
        parameters=per_column + whole,
        param_bytes=split(shape, e * per_column) + e * whole,
        stash_bytes=kept + scores_kept,
        selective_stash_bytes=kept,
        wgrad_stash_bytes=kept_for_w,
        output_bytes=shape.message_bytes,
        rebuilt_flops=0 if shape.flash else core,
        moved_bytes=moved,
    )


def head_row(shape: Transformer) -> Row:
    """Return the last norm, the head's matrix, and the loss."""
    e, elements = shape.element_bytes, shape.tokens * shape.hidden
    logits = shape.tokens * shape.vocabulary
    product = 2 * logits * shape.hidden
    kept = shared(shape, 2 * e * elements) + split(shape, LOGIT_BYTES * logits)
    return Row(
        "head",
        flops=Parts(product, product, product),
        parameters=shape.vocabulary * shape.hidden + _norm(shape),
        param_bytes=vocabulary_bytes(shape) + e * _norm(shape),
        stash_bytes=kept,
        selective_stash_bytes=kept,
        wgrad_stash_bytes=shared(shape, e * elements) + split(shape, e * logits),
        output_bytes=0,
    )


def _scores(shape: Transformer) -> tuple[int, Parts]:
    """Return the bytes of attention's scores: those kept; those read and written."""
    if shape.flash:
        return 0, NOTHING
    e, mask = shape.element_bytes, _mask_bytes(shape)
    scores = shape.tokens * shape.heads * shape.sequence
    # Dropout keeps its mask and what it lets through; it reads, writes, and takes its mask along.
    kept, dropout = (e + mask + e, e + mask + e) if mask else (e, 0)
    # F: out of the queries' product, in and out of the softmax, into the values' product. I: into
    # the values' gradient, out with the scores' one; softmax and gradient in, gradient out; in to
    # the queries' and the keys' gradient.
    moved = Parts(
        split(shape, scores * (4 * e + dropout)), split(shape, scores * (7 * e + dropout)), 0
    )
    return split(shape, scores * kept), moved


def split(shape: Transformer, amount: int) -> int:
    """Return one tensor-parallel rank's part of what is split, rounded up."""
    return -(-amount // shape.tensor_parallel)


def shared(shape: Transformer, amount: int) -> int:
    """Return one tensor-parallel rank's part of what only sequence parallelism splits."""
    return split(shape, amount) if shape.sequence_parallel else amount


def vocabulary_bytes(shape: Transformer) -> int:
    """Return the bytes of the embedding's or head's matrix on one tensor-parallel rank."""
    return split(shape, shape.element_bytes * shape.vocabulary * shape.hidden)


def _mask_bytes(shape: Transformer) -> int:
    return 0 if shape.gated else MASK_BYTES


def _norm(shape: Transformer) -> int:
    """Return the parameters of a norm."""
    return shape.hidden if shape.gated else 2 * shape.hidden
