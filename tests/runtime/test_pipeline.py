"""A real step in micro-batches: its gradients, its refusals, its run and its memory."""

import gc
import warnings
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="pip install 'pipesim[torch]'")

from torch import nn  # noqa: E402

import pipesim as ps  # noqa: E402
from pipesim.base.ops import Kind  # noqa: E402
from pipesim.runtime import Pipeline, profile_layers, split_model  # noqa: E402
from pipesim.runtime.step.held_bytes import HeldBytes  # noqa: E402
from pipesim.runtime.step.split_backward import places_of_use  # noqa: E402
from pipesim.schedules.families.registry import FAMILIES  # noqa: E402
from tests.engine.longest_path import longest_path  # noqa: E402

SLICED = ("seq1f1b", "terapipe")  # attention over slices needs what torch does not keep
WIDTH, LENGTH, WORDS = 8, 3, 11
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}


@pytest.fixture(autouse=True)
def one_thread():
    """Ops this small only wait for each other's threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Block(nn.Module):
    """Attention and a perceptron, each beside a way around it."""

    def __init__(self, inner=2 * WIDTH):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.attention = nn.Linear(WIDTH, 3 * WIDTH)
        self.inner, self.outer = nn.Linear(WIDTH, inner), nn.Linear(inner, WIDTH)

    def forward(self, x):
        q, k, v = self.attention(self.norms[0](x)).chunk(3, dim=-1)
        x = x + nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.outer(nn.functional.gelu(self.inner(self.norms[1](x))))


class TiedHead(nn.Module):
    """A head with the weights of an embedding."""

    def __init__(self, embedding):
        super().__init__()
        self.weight = embedding.weight

    def forward(self, x):
        return nn.functional.linear(x, self.weight)


def language_model(dtype=torch.float64):
    torch.manual_seed(0)
    embedding = nn.Embedding(WORDS, WIDTH)
    layers = [embedding, Block(), Block(), Block(), nn.LayerNorm(WIDTH), TiedHead(embedding)]
    return nn.Sequential(*layers).to(dtype)


def words(batch):
    """Return a batch of texts, and of the words that come next."""
    texts = torch.randint(WORDS, (batch, LENGTH + 1), generator=torch.Generator().manual_seed(1))
    return texts[:, :-1], texts[:, 1:]


def cross_entropy(output, targets):
    return nn.functional.cross_entropy(output.flatten(0, -2), targets.flatten())


def gradients(model):
    """Return all gradients of a model, and forget them."""
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad()
    return found


def whole(model, inputs, targets, loss_fn=cross_entropy):
    """Return loss and gradients of the whole batch at once."""
    model.zero_grad()
    loss = loss_fn(model(inputs), targets)
    loss.backward()
    return loss.item(), gradients(model)


def check_step(model, pipeline, inputs, targets, loss_fn=cross_entropy, **options):
    """Run a step and check its loss and gradients against those of the whole batch."""
    loss, expected = whole(model, inputs, targets, loss_fn)
    result = pipeline.step(inputs, targets, loss_fn, **options)
    near = TOLERANCE[next(model.parameters()).dtype]
    assert result.loss == pytest.approx(loss, rel=near)
    for name, gradient in gradients(model).items():
        if expected[name] is None:
            assert gradient is None, name
        else:
            assert torch.allclose(gradient, expected[name], rtol=near, atol=near), name
    return result


@cache
def order_by_name(name, microbatches):
    """Return the order of four stages, on as many ranks as the schedule is made for."""
    return pipeline_by_name([nn.Identity()] * 6, name, microbatches).schedule


def pipeline_by_name(model, name, microbatches, recompute=False, **options):
    """Return the model in four stages, on as many ranks as the schedule is made for."""
    stages = split_model(model, [2, 1, 1, 2], recompute=recompute)
    ranks = 4 if FAMILIES[name].placement in ("linear", "bidirectional") else 2
    return Pipeline(stages, microbatches, name, ranks=ranks, **options)


@pytest.mark.parametrize("name", [name for name in ps.schedule_names() if name not in SLICED])
@pytest.mark.parametrize("recompute", [False, True, [True, False, False, True]])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_gradients_are_those_of_the_whole_batch(name, recompute, dtype):
    model = language_model(dtype)
    order = order_by_name(name, 8)
    pipeline = Pipeline(split_model(model, [2, 1, 1, 2], recompute=recompute), None, order)
    inputs, targets = words(19)  # micro-batches of 3 and 2, or of 2 and 1
    if FAMILIES[name].backward == "none":
        loss = whole(model, inputs, targets)[0]
        result = pipeline.step(inputs, targets, cross_entropy)
        assert result.loss == pytest.approx(loss, rel=TOLERANCE[dtype])
        assert not any(gradient is not None for gradient in gradients(model).values())
    else:
        result = check_step(model, pipeline, inputs, targets)
    schedule = pipeline.schedule
    assert result.peak_in_flight == schedule.peak_in_flight()
    assert len(result.run.trace.query("resource == 'compute'")) == len(schedule)


@pytest.mark.parametrize("name", SLICED)
def test_slices_are_refused(name):
    with pytest.raises(ps.ScheduleError, match="runs slices of micro-batches along the sequence"):
        pipeline_by_name(language_model(), name, 4, options={"slices": 2})


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "1f1b_eager", "zb_h1", "zb_h2"])
@pytest.mark.parametrize("stages, microbatches", [(1, 1), (1, 3), (3, 1), (6, 2), (2, 5)])
def test_few_stages_or_micro_batches(name, stages, microbatches):
    model = language_model()
    counts = [6 // stages] * stages
    pipeline = Pipeline(split_model(model, counts), microbatches, name)
    check_step(model, pipeline, *words(7))


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb_h1", "interleaved", "dualpipe"])
def test_replicas_average_their_gradients(name):
    model = language_model()
    pipeline = pipeline_by_name(model, name, 8, replicas=2)
    result = check_step(model, pipeline, *words(37))
    assert len(result.step.runs) == 2
    assert result.step.makespan == result.run.makespan


@pytest.mark.parametrize("recompute", ["with_backward", "early", "except_last"])
def test_gpipe_rebuilds_when_its_order_says_so(recompute):
    model = language_model()
    modes = [True, True, False, True]
    pipeline = pipeline_by_name(model, "gpipe", 4, modes, options={"recompute": recompute})
    run = check_step(model, pipeline, *words(9)).run
    # Where R is an op of its own it takes some time on the stage that has nothing to rebuild, too.
    rebuilding = [stage.rebuilt_bytes > 0 for stage in run.pipeline.stages]
    assert rebuilding == modes
    if recompute == "with_backward":
        assert [bool(np.any(stage.recompute_ms)) for stage in run.pipeline.stages] == modes
    rebuilt = run.trace.query("kind == 'R'")
    assert len(rebuilt) == {"with_backward": 0, "early": 16, "except_last": 12}[recompute]


SOME_OR_ALL = [True, [True, False, True, False], [False, False, True, True]]


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb_h1", "interleaved"])
@pytest.mark.parametrize("recompute", SOME_OR_ALL)
def test_replicas_of_stages_that_recompute(name, recompute):
    model = language_model()
    pipeline = pipeline_by_name(model, name, 8, recompute, replicas=2)
    result = check_step(model, pipeline, *words(37))
    modes = [recompute] * 4 if recompute is True else recompute
    for run in result.step.runs:
        assert [stage.rebuilt_bytes > 0 for stage in run.pipeline.stages] == modes


@pytest.mark.parametrize("when", ["early", "except_last"])
@pytest.mark.parametrize("recompute", SOME_OR_ALL)
def test_replicas_that_rebuild_in_an_op_of_its_own(when, recompute):
    model, options = language_model(), {"recompute": when}
    pipeline = pipeline_by_name(model, "gpipe", 4, recompute, replicas=2, options=options)
    result = check_step(model, pipeline, *words(19))
    count = {"early": 16, "except_last": 12}[when]
    assert [len(run.trace.query("kind == 'R'")) for run in result.step.runs] == [count, count]


def test_gradients_add_up_over_steps_and_a_loss_may_be_a_sum():
    model = language_model()
    inputs, targets = words(6)
    pipeline = pipeline_by_name(model, "zb_h1", 4)

    def summed(output, targets):
        return cross_entropy(output, targets) * len(output)

    check_step(model, pipeline, inputs, targets, summed, reduction="sum")
    once = whole(model, inputs, targets)[1]
    for _ in range(2):
        pipeline.step(inputs, targets, cross_entropy)
    for name, gradient in gradients(model).items():
        assert torch.allclose(gradient, 2 * once[name], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["1f1b", "zb_h1"])
@pytest.mark.parametrize("recompute", [False, True])
def test_stages_without_anything_to_train(name, recompute):
    """Frozen at the front, frozen in the middle, no parameters, no layers, a lone function."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)), nn.Tanh()).double()
    for frozen in (0, 2):
        model[frozen].requires_grad_(False)
    stages = split_model(model, [1, 1, 1, 0, 1, 1], recompute=recompute)
    inputs, targets = torch.randn(2, 5, 4, dtype=torch.float64)
    check_step(model, Pipeline(stages, 3, name), inputs, targets, nn.functional.mse_loss)


@pytest.mark.parametrize("recompute", [False, True])
def test_a_stage_that_recomputes_repeats_its_random_numbers(recompute):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.Linear(6, 1)).double()
    inputs, targets = torch.randn(8, 6).double(), torch.randn(8, 1).double()
    pipeline = Pipeline(split_model(model, [2, 1], recompute=recompute), 2, "1f1b")
    torch.manual_seed(3)
    loss = pipeline.step(inputs, targets, nn.functional.mse_loss).loss
    found = gradients(model)
    torch.manual_seed(3)
    parts = [
        nn.functional.mse_loss(model(x), y) / 2
        for x, y in zip(inputs.chunk(2), targets.chunk(2), strict=True)
    ]
    sum(parts).backward()
    assert loss == pytest.approx(sum(parts).item(), rel=1e-10)
    for name, gradient in gradients(model).items():
        assert torch.allclose(gradient, found[name], rtol=1e-10, atol=1e-10)


class Twice(nn.Module):
    """A layer that uses its weights at two places, and some beside them."""

    def __init__(self):
        super().__init__()
        self.weight, self.shift = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4))
        self.unused, self.once = nn.Parameter(torch.randn(4)), nn.Linear(4, 4)

    def forward(self, x):
        y = torch.sin(x @ self.weight + self.shift)
        return x + self.once(y) @ (self.weight * 2) + self.shift


def test_split_backward_of_weights_used_twice():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), Twice(), Twice()).double()
    inputs, targets = torch.randn(2, 6, 4, dtype=torch.float64)
    pipeline = Pipeline(split_model(model, [1, 2]), 3, "zb_h1")
    check_step(model, pipeline, inputs, targets, nn.functional.mse_loss)

    layer, x = model[1], torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    places, shared = places_of_use([layer(x).grad_fn], [x], layer.parameters())
    assert [id(p) for p in shared] == [id(layer.weight), id(layer.shift)]
    assert sum(len(own) for _, own in places) == 2  # weight and bias of the linear layer


def test_a_parameter_is_never_reached_through_the_input_of_its_layer():
    """W does not go back through the stage again: each weight from its own layer alone."""
    model = nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(5)))
    x = torch.randn(2, 4, requires_grad=True)
    places, shared = places_of_use([model(x).grad_fn], [x], model.parameters())
    assert not shared
    assert [[id(p) for p in own] for _, own in places] == [[id(p)] for p in model.parameters()]


def test_a_layer_that_is_there_twice():
    torch.manual_seed(0)
    layer = nn.Linear(4, 4).double()
    model = nn.Sequential(layer, nn.Tanh(), layer, layer)
    inputs, targets = torch.randn(2, 6, 4, dtype=torch.float64)
    for name in ("1f1b", "zb_h1"):
        pipeline = Pipeline(split_model(model, [1, 1, 2]), 3, name)
        check_step(model, pipeline, inputs, targets, nn.functional.mse_loss)


# What is refused, before anything is run.


def refusing_stages(count):
    class Never(nn.Module):
        def forward(self, x):
            raise AssertionError("was run")

    return split_model([Never() for _ in range(count)], [1] * count)


def test_wrong_orders_are_refused():
    with pytest.raises(ps.ScheduleError, match="stage 1, micro-batch 1 has F but no backward"):
        Pipeline(refusing_stages(2), 2, lambda placement, m: ps.Schedule.from_orders(
            ["0F0 0F1 0B0 0B1", "1F0 1B0 1F1"]
        ))  # fmt: skip
    with pytest.raises(ps.ScheduleError, match="1F0 is not on the rank that holds its stage"):
        Pipeline(refusing_stages(2), 1, lambda placement, m: ps.Schedule.from_orders(
            ["1F0 1B0", "0F0 0B0"], placement=placement
        ))  # fmt: skip
    order = ps.Schedule.from_orders(["0F0 0B0", "1F0 1B0"])
    for stages in (1, 3):
        with pytest.raises(ps.ScheduleError, match=f"is for 2 stages, the model is in {stages}"):
            Pipeline(refusing_stages(stages), None, order)
    with pytest.raises(ps.ScheduleError, match="has 1 micro-batches, not 2"):
        Pipeline(refusing_stages(2), 2, order)
    hanging = ps.Schedule.from_orders(["0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"])
    with pytest.raises(ps.DeadlockError, match="ranks 0, 1 wait for each other"):
        Pipeline(refusing_stages(2), None, hanging)
    with pytest.raises(ps.ScheduleError, match="no backward, so there is nothing to reduce"):
        Pipeline(refusing_stages(2), 2, "gpipe_forward", replicas=2)


def test_an_order_of_a_file_is_run(tmp_path):
    model = language_model()
    order = ps.build_schedule("interleaved_zb", ranks=2, microbatches=4, chunks=2)
    ps.write_schedule(order, tmp_path / "order.csv")
    pipeline = Pipeline(split_model(model, [2, 1, 1, 2]), 4, tmp_path / "order.csv")
    check_step(model, pipeline, *words(9))
    (tmp_path / "wrong.csv").write_text("0F0,0F1,0B0,0B1\n,1F0,1B0,1F1\n")
    with pytest.raises(ps.PipesimError, match="'1F1' has no backward 1B1"):
        Pipeline(refusing_stages(2), 2, tmp_path / "wrong.csv")


def test_wrong_batches_are_refused():
    pipeline = Pipeline(refusing_stages(2), 3, "1f1b")
    with pytest.raises(ValueError, match="a batch of 2 is too small for 3 micro-batches"):
        pipeline.step(torch.zeros(2, 4), torch.zeros(2, 4), nn.functional.mse_loss)
    with pytest.raises(ValueError, match="3 inputs, but 4 targets"):
        pipeline.step(torch.zeros(3, 4), torch.zeros(4, 4), nn.functional.mse_loss)
    with pytest.raises(ValueError, match="loss_fn has parameters of its own"):
        pipeline.step(torch.zeros(3, 4), torch.zeros(3, 4), nn.Bilinear(4, 4, 1))
    with pytest.raises(ValueError, match="reduction = 'max' is neither"):
        pipeline.step(torch.zeros(3, 4), torch.zeros(3, 4), nn.functional.mse_loss, reduction="max")


def test_what_torch_would_refuse_is_refused():
    class Pair(nn.Module):
        def forward(self, x):
            return x, x

    pipeline = Pipeline(split_model([nn.Linear(4, 4), Pair()], [1, 1]), 1)
    with pytest.raises(TypeError, match="stage 1 puts out a tuple"):
        pipeline.step(torch.zeros(2, 4), torch.zeros(2, 4), nn.functional.mse_loss)

    class InPlace(nn.Module):
        def forward(self, x):
            y = torch.sigmoid(x)
            return y.add_(1) * 2

    pipeline = Pipeline(split_model([nn.Linear(4, 4), InPlace()], [1, 1]), 1)
    with pytest.raises(RuntimeError, match="modified by an in-place operation"):
        pipeline.step(torch.zeros(2, 4), torch.zeros(2, 4), nn.functional.mse_loss)


@pytest.mark.parametrize(
    ("layers", "where"),
    [
        ([nn.ReLU(inplace=True)], r"stage 1, in layer 1 \(ReLU\)"),
        ([nn.Identity(), nn.Sequential(nn.SiLU(inplace=True))], r"in layer 2 \(Sequential\)"),
        ([nn.Flatten(0), nn.ReLU(inplace=True), nn.Unflatten(0, (2, 4))], r"in layer 2 \(ReLU\)"),
    ],
)
def test_a_stage_must_not_change_its_input_in_place(layers, where):
    model = nn.Sequential(nn.Linear(4, 4), *layers)
    x, loss_fn = torch.randn(2, 4), nn.functional.mse_loss
    with pytest.raises(RuntimeError, match=f"{where}: an in-place operation on the input") as found:
        Pipeline(split_model(model, [1, len(layers)]), 1).step(x, x, loss_fn)
    assert "give inplace=False, or put the layer into the stage before" in str(found.value)
    assert "a leaf Variable that requires grad" in str(found.value.__cause__)
    check_step(model, Pipeline(split_model(model, [1 + len(layers), 0]), 1), x, x, loss_fn)


def test_a_module_without_known_layers_must_not_change_its_input_either():
    pipeline = Pipeline([nn.Linear(4, 4), nn.ReLU(inplace=True)], 1)
    with pytest.raises(RuntimeError, match="stage 1: an in-place operation on the input"):
        pipeline.step(torch.zeros(2, 4), torch.zeros(2, 4), nn.functional.mse_loss)


def test_other_errors_of_a_layer_are_torchs_own_with_a_note_of_the_layer():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x):
            return x * self.weight.add_(1)

    x = torch.zeros(2, 4)
    for layers, message, note in (
        ([nn.Identity(), Own()], "^a leaf Variable that requires grad", "in layer 1 (Own)"),
        ([nn.Identity(), nn.Linear(3, 4)], "shapes cannot be multiplied", "in layer 1 (Linear)"),
    ):
        with pytest.raises(RuntimeError, match=message) as found:
            Pipeline(split_model(layers, [2]), 1).step(x, x, nn.functional.mse_loss)
        assert found.value.__notes__ == [note, "in F of stage 0, micro-batch 0"]


@pytest.mark.parametrize(
    ("loss_fn", "message"),
    [
        (nn.MSELoss(reduction="none"), r"a tensor \(1, 4\)"),
        (lambda output, target: output.sum().item(), "a float"),
        (lambda output, target: (output.sum(), output), "a tuple"),
    ],
)
def test_a_loss_that_is_no_single_number_is_refused(loss_fn, message):
    pipeline = Pipeline([nn.Linear(4, 4)], 2)
    with pytest.raises(TypeError, match=f"loss_fn gives {message}: give a tensor with a single"):
        pipeline.step(torch.zeros(2, 4), torch.zeros(2, 4), loss_fn)


def test_a_loss_may_have_one_dimension():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).double()
    x, y = torch.randn(2, 5, 4, dtype=torch.float64)
    check_step(
        model,
        Pipeline(split_model(model, [1, 1]), 2),
        x,
        y,
        lambda output, target: nn.functional.mse_loss(output, target).reshape(1),
    )


def test_gradients_are_there_in_inference_mode_too():
    model = language_model()
    inputs, targets = words(9)
    with torch.inference_mode():
        inputs_there, targets_there = inputs.clone(), targets.clone()
    for name in ("1f1b", "zb_h1"):
        pipeline = pipeline_by_name(model, name, 4, [True, False, False, True])
        _, expected = whole(model, inputs, targets)
        for batch in ((inputs, targets), (inputs_there, targets_there)):
            with torch.inference_mode():
                pipeline.step(*batch, cross_entropy)
            for key, gradient in gradients(model).items():
                assert torch.allclose(gradient, expected[key], rtol=1e-10, atol=1e-10)


def test_stages_made_in_inference_mode_are_refused():
    with torch.inference_mode():
        made_there = nn.Linear(4, 4)
    pipeline = Pipeline(split_model([*refusing_stages(1), made_there], [1, 1]), 1)
    with pytest.raises(
        ValueError, match=r"stage 1: layers.0.weight was made under torch.inference"
    ):
        pipeline.step(torch.zeros(2, 4), torch.zeros(2, 4), nn.functional.mse_loss)


# The run of a step.


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved", "zb_h1", "zb_v", "chimera"])
@pytest.mark.parametrize("recompute", [False, True])
def test_the_run_is_the_longest_path_over_the_measured_times(name, recompute):
    model = language_model()
    run = pipeline_by_name(model, name, 8, recompute).step(*words(16), cross_entropy).run
    times = longest_path(run.schedule, run.pipeline)
    first, last = min(start for start, _ in times.values()), max(end for _, end in times.values())
    assert run.makespan == pytest.approx(last - first, rel=1e-12)
    assert (run.trace.query("resource == 'compute'").eval("end - start") >= 0).all()
    if name in ("gpipe", "1f1b"):
        assert run.closed_form == pytest.approx(3 / 11)
        assert 0 < run.bubble_fraction < 1


def test_a_whole_backward_among_split_ones_takes_what_it_took():
    model = language_model()
    run = pipeline_by_name(model, "dualpipe", 8).step(*words(16), cross_entropy).run
    schedule, pipe = run.schedule, run.pipeline
    assert {Kind.B, Kind.I, Kind.W} < schedule.kinds
    whole_ones = {(op.stage, op.microbatch) for rank in range(4) for op in schedule.order(rank)
                  if op.kind == Kind.B}  # fmt: skip
    for stage, microbatch in whole_ones:
        assert pipe.stages[stage].input_grad_ms[microbatch] > 0
        assert pipe.stages[stage].weight_grad_ms[microbatch] == 0


# Memory.


def deep_model(width=16):
    torch.manual_seed(0)
    layers = [[nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)] for _ in "1234"]
    return nn.Sequential(*(layer for block in layers for layer in block))


def step_of_deep_model(name, microbatches=8, recompute=False, batch=32, **options):
    pipeline = Pipeline(
        split_model(deep_model(), [3, 3, 3, 3], recompute=recompute), microbatches, name, **options
    )
    inputs, targets = torch.randn(2, batch, 16)
    return pipeline.step(inputs, targets, nn.functional.mse_loss)


def stash_by_hooks(stage, activation, loss=None):
    """Return what one forward keeps, counted here: storages of its input and of what it saves."""
    own = {p.untyped_storage().data_ptr() for p in stage.parameters()}
    sizes = {}

    def pack(tensor):
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        activation = activation.detach().requires_grad_()
        pack(activation)
        output = stage(activation)
        value = output if loss is None else loss(output)  # alive until all is counted
    del value
    return sum(size for address, size in sizes.items() if address not in own), output


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb_h1"])
@pytest.mark.parametrize("recompute", [False, True])
def test_the_timeline_predicts_the_peak_of_each_rank(name, recompute):
    result = step_of_deep_model(name, recompute=recompute)
    predicted = result.run.memory.groupby("rank")["activations"].max()
    for rank, peak in enumerate(result.peak_activation_bytes):
        assert peak > 0
        assert predicted[rank] == pytest.approx(peak, rel=0.05)


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_bytes_of_one_forward_predict_the_peak(name):
    activation, target, stash = torch.randn(4, 16), torch.randn(4, 16), []
    stages = split_model(deep_model(), [3, 3, 3, 3])
    for stage in stages:
        loss = (lambda y: nn.functional.mse_loss(y, target)) if stage is stages[-1] else None
        size, activation = stash_by_hooks(stage, activation, loss)
        stash.append(size)
    pipe = ps.Pipeline.from_costs([1] * 4, [2] * 4, stash_bytes=stash)
    predicted = ps.simulate(pipe, name, microbatches=8).peak_memory
    assert step_of_deep_model(name).peak_activation_bytes == pytest.approx(predicted, rel=0.05)


def test_buffers_of_a_loss_are_there_anyway():
    inputs, targets = torch.randn(8, 16), torch.randint(500, (8,))

    def peak(loss_fn):
        pipeline = Pipeline(split_model([nn.Linear(16, 500)], [1]), 2, "gpipe")
        return pipeline.step(inputs, targets, loss_fn).peak_activation_bytes[0]

    # A mean with weights keeps their sum, a single number for each micro-batch, and no more.
    plain, weighed = nn.CrossEntropyLoss(), nn.CrossEntropyLoss(torch.ones(500))
    assert peak(plain) <= peak(weighed) <= peak(plain) + 2 * 4


ROWS, WIDE, INNER, NARROW = 4, 5, 7, 3


def linear_tanh_linear_relu():
    """Return four layers, the bytes they keep, and those held of them between I and W, by hand.

    Linear keeps its input, Tanh its output, which the second Linear keeps, too, and ReLU its own.
    From I to W there are the gradients of what both Linears put out, and no more what ReLU keeps.
    """
    layers = [nn.Linear(WIDE, INNER), nn.Tanh(), nn.Linear(INNER, NARROW), nn.ReLU()]
    return layers, 4 * ROWS * (WIDE + INNER + NARROW), 4 * ROWS * (WIDE + INNER + INNER + NARROW)


def test_what_a_stage_holds_between_input_gradient_and_weight_gradient():
    layers, kept, held = linear_tanh_linear_relu()
    pipeline = Pipeline(split_model([nn.Linear(2, WIDE), *layers], [1, 4]), 1, "zb_h1")
    result = pipeline.step(torch.randn(ROWS, 2), torch.zeros(ROWS), lambda y, targets: y.sum())
    first, second = result.run.pipeline.stages
    assert second.stash_bytes == kept
    assert second.stash_bytes - second.input_grad_frees_bytes == held
    # The first stage has an input without gradient: I does nothing, the output's gradient waits.
    assert first.stash_bytes == 4 * ROWS * 2
    assert first.stash_bytes - first.input_grad_frees_bytes == 4 * ROWS * (2 + WIDE)
    assert result.peak_activation_bytes == (4 * ROWS * (2 + WIDE), held)


def test_a_profile_knows_what_is_held_between_input_gradient_and_weight_gradient():
    layers, kept, held = linear_tanh_linear_relu()
    sample = torch.randn(ROWS, WIDE, requires_grad=True)
    profile = quick_profile(layers, sample)
    assert (sum(profile.stash_bytes), sum(profile.wgrad_stash_bytes)) == (kept, held)
    # Before a layer that trains weights all stays, behind the last one nothing.
    assert profile.wgrad_stash_bytes[3] == 0
    more = quick_profile([*layers, nn.Linear(NARROW, 1)], sample)
    assert sum(more.wgrad_stash_bytes) == held + 4 * ROWS * (NARROW + 1)
    assert quick_profile([nn.Tanh(), nn.ReLU()], sample).wgrad_stash_bytes == (0, 0)


def quick_profile(layers, sample, **loss):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # times may be unsteady; bytes are counted
        return profile_layers(layers, sample, **loss, repeats=1, warmup=0)


SPLIT_BACKWARDS = ["zb_h1", "zb_2p", "interleaved_zb", "zb_v", "v_half"]


@pytest.mark.parametrize("name", ["gpipe", "1f1b", *SPLIT_BACKWARDS])
def test_a_profile_predicts_the_peak_of_each_rank(name):
    model = language_model()
    inputs, targets = words(16)
    profile = quick_profile(model, inputs[:2], loss_fn=cross_entropy, targets=targets[:2])
    pipeline = pipeline_by_name(model, name, 8)
    schedule = pipeline.schedule
    real = pipeline.step(inputs, targets, cross_entropy).peak_activation_bytes
    pipe = profile.split([2, 1, 1, 3], placement=schedule.placement)
    predicted = ps.simulate(pipe, schedule).ranks.peak_stash_bytes.tolist()
    assert real[1:] == pytest.approx(predicted[1:], rel=0.05)
    assert real[0] <= predicted[0]
    # The first stage has no input gradient, and so notes none but that of its output.
    first = replace(pipe.stages[0], input_grad_frees_bytes=-pipe.stages[0].output_bytes)
    corrected = replace(pipe, stages=(first, *pipe.stages[1:]))
    predicted = ps.simulate(corrected, schedule).ranks.peak_stash_bytes.tolist()
    assert real == pytest.approx(predicted, rel=0.05)


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_a_profile_predicts_the_peak_where_stages_end_between_activations(name):
    model = nn.Sequential(
        *(layer for _ in range(4) for layer in (nn.Linear(16, 16), nn.Tanh(), nn.Dropout(0.1)))
    )
    batch = torch.randn(32, 16)
    found = quick_profile(model, batch[:4])
    for counts in ([1, 3, 4, 4], [2, 4, 3, 3], [4, 4, 1, 3]):
        simulated = ps.simulate(found.split(counts), name, microbatches=8)
        predicted = simulated.ranks.peak_stash_bytes.tolist()
        pipeline = Pipeline(split_model(model, counts), 8, name)
        real = pipeline.step(batch, batch, lambda output, _: output.sum())
        assert real.peak_activation_bytes == pytest.approx(predicted, rel=0.05)


def test_checkpointing_lowers_the_peak_and_takes_time():
    kept, rebuilt = (step_of_deep_model("gpipe", recompute=mode) for mode in (False, True))
    for more, less in zip(kept.peak_activation_bytes, rebuilt.peak_activation_bytes, strict=True):
        assert less < 0.4 * more
    assert all(stage.recompute_ms == 0 for stage in kept.run.pipeline.stages)
    assert all(min(stage.recompute_ms) > 0 for stage in rebuilt.run.pipeline.stages)
    for stage in rebuilt.run.pipeline.stages:
        assert stage.stash_bytes == 4 * 16 * 4  # the input of a micro-batch
        assert stage.rebuilt_bytes > 4 * stage.stash_bytes


def test_one_f_one_b_holds_fewer_micro_batches_the_later_the_stage():
    gpipe, one = (step_of_deep_model(name) for name in ("gpipe", "1f1b"))
    assert gpipe.peak_in_flight == (8, 8, 8, 8)
    assert one.peak_in_flight == (4, 3, 2, 1)
    shares = [a / b for a, b in zip(one.peak_activation_bytes, gpipe.peak_activation_bytes,
                                    strict=True)]  # fmt: skip
    assert shares == pytest.approx([4 / 8, 3 / 8, 2 / 8, 1 / 8], rel=0.05)


@pytest.mark.parametrize("name", ["1f1b", "zb_h1", "gpipe"])
@pytest.mark.parametrize("recompute", [False, True])
def test_nothing_is_held_after_a_step(name, recompute, monkeypatch):
    """Also without the collector of cycles: when a backward has ended, its bytes are free."""
    alive = []
    monkeypatch.setattr(HeldBytes, "__init__", counting(HeldBytes.__init__, alive))
    gc.disable()
    try:
        pipeline_by_name(language_model(), name, 8, recompute).step(*words(16), cross_entropy)
        assert len(alive) == 4
        assert [held.now for held in alive] == [0, 0, 0, 0]
    finally:
        gc.enable()


def counting(method, alive):
    def counted(self, *arguments):
        alive.append(self)
        return method(self, *arguments)

    return counted


def test_shards_need_the_names_of_layers(tmp_path):
    pipeline = Pipeline([nn.Linear(4, 4)], 1)
    for method in (pipeline.save, pipeline.load):
        with pytest.raises(TypeError, match="make the stages with split_model"):
            method(tmp_path / "shards")
    assert not (tmp_path / "shards").exists()


def test_shards_of_one_split_go_on_in_another(tmp_path):
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(5)))
    first = Pipeline(split_model(model, [2, 2, 1]), 2, "1f1b")
    first.save(tmp_path)
    other = nn.Sequential(*(nn.Linear(4, 4) for _ in range(5)))
    second = Pipeline(split_model(other, [1, 4]), 2, "1f1b")
    second.load(tmp_path)
    x = torch.randn(3, 4)
    assert torch.equal(other(x), model(x))


def test_without_counting_there_are_times_and_no_bytes():
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
    stages = split_model(model, [1, 1, 1, 1], recompute=[True, False, False, False])
    x = torch.randn(6, 4)
    grads = []
    for counted in (True, False):
        model.zero_grad()
        pipeline = Pipeline(stages, 3, "zb_h1")
        result = pipeline.step(x, x, nn.functional.mse_loss, count_bytes=counted)
        grads.append([parameter.grad for parameter in model.parameters()])
        assert (result.peak_activation_bytes is not None) == counted
        assert bool(max(result.run.ranks.peak_stash_bytes)) == counted
        assert result.run.makespan > 0
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))
