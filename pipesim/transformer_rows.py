"""An embedding, a layer, and a head of a transformer by formula: FLOPs, parameters, bytes.

Of one micro-batch of b sequences of s tokens; hidden h, a heads, g of keys and values, MLP of
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

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pipesim.transformer import Transformer

MASK_BYTES = 1  # an element of a dropout mask
LOGIT_BYTES = 4


class Parts(NamedTuple):
    """An amount by the parts of a micro-batch's work: F, I, W."""

    forward: int
    input_grad: int
    weight_grad: int


NOTHING = Parts(0, 0, 0)


class Row(NamedTuple):
    """What an embedding, a layer, or a head is, and takes for one micro-batch.

    FLOPs and parameters are those of all tensor-parallel ranks together, bytes those of one.
    Selective recompute repeats `rebuilt_flops` and keeps `selective_stash_bytes`. `moved_bytes`
    is what attention reads and writes between its matrices.
    """

    kind: str
    flops: Parts
    parameters: int
    param_bytes: int
    stash_bytes: int
    selective_stash_bytes: int
    wgrad_stash_bytes: int
    output_bytes: int
    rebuilt_flops: int = 0
    moved_bytes: Parts = NOTHING


def embedding_row(shape: "Transformer") -> Row:
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


def layer_row(shape: "Transformer") -> Row:
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


def head_row(shape: "Transformer") -> Row:
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


def _scores(shape: "Transformer") -> tuple[int, Parts]:
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


def split(shape: "Transformer", amount: int) -> int:
    """Return one tensor-parallel rank's part of what is split, rounded up."""
    return -(-amount // shape.tensor_parallel)


def shared(shape: "Transformer", amount: int) -> int:
    """Return one tensor-parallel rank's part of what only sequence parallelism splits."""
    return split(shape, amount) if shape.sequence_parallel else amount


def vocabulary_bytes(shape: "Transformer") -> int:
    """Return the bytes of the embedding's or head's matrix on one tensor-parallel rank."""
    return split(shape, shape.element_bytes * shape.vocabulary * shape.hidden)


def _mask_bytes(shape: "Transformer") -> int:
    return 0 if shape.gated else MASK_BYTES


def _norm(shape: "Transformer") -> int:
    """Return the parameters of a norm."""
    return shape.hidden if shape.gated else 2 * shape.hidden
