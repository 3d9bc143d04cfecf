"""Steps that would lose gradients or stop with words of torch: each runs right or is refused."""

import pytest

torch = pytest.importorskip("torch", reason="pip install 'pipesim[torch]'")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from pipesim.runtime import (  # noqa: E402
    Pipeline,
    PipelineStage,
    load_stages,
    profile_layers,
    save_stages,
    split_model,
)
from pipesim.runtime.step import execution  # noqa: E402
from pipesim.runtime.step.split_backward import input_gradient, weight_gradients  # noqa: E402
from tests.runtime.test_pipeline import check_step  # noqa: E402

mse_loss = nn.functional.mse_loss
BOTH_BACKWARDS = pytest.mark.parametrize("name", ["1f1b", "zb_h1"])
RECOMPUTE = pytest.mark.parametrize("recompute", [False, True])


class Function(nn.Module):
    """A layer that knows of what it uses only what a function does."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def linear_layers(count):
    torch.manual_seed(0)
    return [nn.Linear(4, 4).double() for _ in range(count)]


def batch(rows=8):
    return torch.randn(2, rows, 4, dtype=torch.float64)


def step(layers, name="1f1b", microbatches=2, recompute=False, loss_fn=mse_loss, rows=8):
    stages = split_model(layers, [1] * len(layers), recompute=recompute)
    return Pipeline(stages, microbatches, name).step(*batch(rows), loss_fn)


# Gradients that would be lost.


def tied_by_closure(embedding):
    return Function(lambda x: nn.functional.linear(x, embedding.weight))


def tied_in_a_list(embedding):
    layer = Function(lambda x: nn.functional.linear(x, layer.kept[0].weight))
    layer.kept = [embedding]
    return layer


def tied_by_a_functional_call(embedding):
    own = nn.Linear(4, 4).double().requires_grad_(False)
    weights = {"weight": embedding.weight}
    return Function(lambda x: torch.func.functional_call(own, weights, x))


def computed_before(embedding):
    weight = embedding.weight * 2
    return Function(lambda x: nn.functional.linear(x, weight))


HIDING = [tied_by_closure, tied_in_a_list, tied_by_a_functional_call, computed_before]
LOST = r"a tensor \(4, 4\) that requires a gradient and is no parameter of its modules: register it"


@pytest.mark.parametrize("tied", HIDING)
@pytest.mark.parametrize("place", [1, 2])
@BOTH_BACKWARDS
@RECOMPUTE
def test_a_weight_that_a_stage_has_not_registered_is_refused(tied, place, name, recompute):
    layers = linear_layers(3)
    layers[place] = tied(layers[0])
    with pytest.raises(ValueError, match=f"^stage {place}( or its loss)? uses {LOST}"):
        step(layers, name, recompute=recompute)


def test_a_weight_that_is_registered_or_wants_no_gradient_is_not():
    layers = linear_layers(3)
    layers[2] = tied_by_closure(layers[0])
    step(layers, "gpipe_forward")
    layers[2].weight = layers[0].weight
    for _ in range(2):
        pipeline = Pipeline(split_model(layers, [1, 1, 1]), 2, "zb_h1")
        check_step(nn.Sequential(*layers), pipeline, *batch(), mse_loss)
        layers[2].weight = None
        layers[0].requires_grad_(False)


def test_each_stage_is_looked_through_once_a_step(monkeypatch):
    looked = []
    monkeypatch.setattr(
        execution, "check_registered", lambda name, outputs, known: looked.append(name)
    )
    step(linear_layers(3), microbatches=4, recompute=[True, False, True])
    assert sorted(looked) == ["stage 0", "stage 1", "stage 2 or its loss"]


def test_a_profile_refuses_it_too():
    first, second = linear_layers(2)
    layers = nn.Sequential(first, tied_by_closure(first), second)
    with pytest.raises(ValueError, match=rf"^layer 1 \(1, Function\) uses {LOST}"):
        profile_layers(layers, batch()[0], repeats=1)


def test_what_an_autograd_function_calls_a_variable_is_no_weight():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            context.variable = torch.ones(4, 4, requires_grad=True)
            return 2 * x

        @staticmethod
        def backward(context, gradient):
            return 2 * gradient

    layers = [*linear_layers(2), Function(Double.apply)]
    pipeline = Pipeline(split_model(layers, [1, 2]), 2, "zb_h1")
    check_step(nn.Sequential(*layers), pipeline, *batch(), mse_loss)


@RECOMPUTE
def test_a_loss_with_hidden_weights_or_without_a_way_back_is_refused(recompute):
    critic = nn.Linear(4, 1).double()
    with pytest.raises(ValueError, match=r"stage 1 or its loss uses a tensor \(1, 4\)"):
        step(linear_layers(2), recompute=recompute, loss_fn=lambda y, _: critic(y).mean())
    for loss_fn in (
        lambda output, targets: mse_loss(output.detach(), targets),
        lambda output, targets: (output > targets).double().mean(),
        torch.no_grad()(mse_loss),
    ):
        layers = linear_layers(2)
        with pytest.raises(ValueError, match="no way leads back from the loss"):
            step(layers, recompute=recompute, loss_fn=loss_fn)
        assert step(layers, "gpipe_forward", recompute=recompute, loss_fn=loss_fn).loss > 0
        step([layer.requires_grad_(False) for layer in layers], loss_fn=loss_fn)


@BOTH_BACKWARDS
def test_complex_numbers_between_stages_that_recompute(name):
    layers = [
        *linear_layers(1),
        Function(torch.fft.fft),
        Function(lambda x: torch.fft.ifft(x * x)),
        Function(torch.real),
    ]
    pipeline = Pipeline(split_model(layers, [1, 1, 1, 1], recompute=True), 2, name)
    check_step(nn.Sequential(*layers), pipeline, *batch(), mse_loss)


@BOTH_BACKWARDS
@pytest.mark.parametrize("recompute", [True, [False, True, False, True]])
def test_stages_that_put_out_a_view_of_their_input(name, recompute):
    layers = [linear_layers(1)[0], nn.Unflatten(1, (2, 2)), nn.Flatten(), *linear_layers(1)]
    pipeline = Pipeline(split_model(layers, [1, 1, 1, 1], recompute=recompute), 4, name)
    check_step(nn.Sequential(*layers), pipeline, *batch(), mse_loss)


class Prompt(nn.Module):
    """A first stage that puts out its weights, whatever comes in."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 4, dtype=torch.float64))

    def forward(self, x):
        return self.weight.view(4, 4)


@BOTH_BACKWARDS
@RECOMPUTE
def test_a_stage_may_put_out_a_view_of_its_weights(name, recompute):
    layers = [Prompt(), *linear_layers(1)]
    pipeline = Pipeline(split_model(layers, [1, 1], recompute=recompute), 1, name)
    check_step(nn.Sequential(*layers), pipeline, *batch(4), mse_loss)
    assert step(layers, "gpipe_forward", rows=8).loss > 0


# In place, and with recompute.


@BOTH_BACKWARDS
@RECOMPUTE
def test_a_first_layer_may_work_in_place_where_its_input_wants_no_gradient(name, recompute):
    inputs, targets = batch()
    layers = [nn.SiLU(inplace=True), *linear_layers(2)]
    pipeline = Pipeline(split_model(layers, [2, 1], recompute=recompute), 2, name)
    reference = nn.Sequential(nn.SiLU(), *layers[1:])
    expected = mse_loss(reference(inputs), targets)
    expected.backward()
    gradients = [parameter.grad for parameter in reference.parameters()]
    reference.zero_grad()
    assert pipeline.step(inputs, targets, mse_loss).loss == pytest.approx(expected.item())
    for parameter, gradient in zip(reference.parameters(), gradients, strict=True):
        assert torch.allclose(parameter.grad, gradient)


@RECOMPUTE
def test_elsewhere_it_is_named_with_its_stage(recompute):
    layers = [*linear_layers(1), nn.ReLU(inplace=True)]
    with pytest.raises(RuntimeError, match=r"^stage 1, in layer 1 \(ReLU\): an in-place"):
        step(layers, recompute=recompute)


def test_what_fails_says_in_which_op():
    def failing(x):
        return checkpoint(torch.tanh, x, use_reentrant=True)

    with pytest.raises(RuntimeError, match="use_reentrant=False") as found:
        step([*linear_layers(1), Function(failing), *linear_layers(1)], "zb_h1")
    assert found.value.__notes__ == ["in I of stage 1, micro-batch 0"]


# Graphs are freed at their last use, as compiled layers need.


def test_a_graph_is_freed_when_it_was_needed_last():
    layer, x = nn.Linear(4, 4).double(), batch()[0].requires_grad_()
    output = torch.autograd.graph.get_gradient_edge(layer(x).tanh())
    gradients = [torch.ones_like(x)]
    _, parts = input_gradient([output], gradients, [x], layer.parameters())
    assert len(weight_gradients(parts)) == 2
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        weight_gradients(parts)
    output = torch.autograd.graph.get_gradient_edge(layer(x).tanh())
    assert input_gradient([output], gradients, [x], [])[1] == []
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        input_gradient([output], gradients, [x], [])


@pytest.fixture
def compiled():
    """Return layers as a program has them that has trained them before."""

    def made(count):
        blocks = [nn.Sequential(layer, nn.GELU()) for layer in linear_layers(count)]
        layers = [torch.compile(block, backend="aot_eager") for block in blocks]
        inputs, targets = batch()
        for rows in (8, 4):
            mse_loss(nn.Sequential(*layers)(inputs[:rows]), targets[:rows]).backward()
        return layers

    config = pytest.importorskip("torch._functorch.config")
    if not hasattr(config, "donated_buffer"):
        pytest.skip("nothing is donated")
    torch._dynamo.reset()
    before = config.donated_buffer
    yield made, config
    config.donated_buffer = before
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_compiled_layers_under_a_split_backward(compiled):
    made, config = compiled
    config.donated_buffer = True
    layers = made(1)
    check_step(
        nn.Sequential(*layers), Pipeline(split_model(layers, [1]), 2, "zb_h1"), *batch(), mse_loss
    )
    with pytest.raises(RuntimeError, match="donated") as found:
        step(made(2), "zb_h1")
    assert found.value.__notes__ == ["in I of stage 1, micro-batch 0"]
    config.donated_buffer = False
    layers = made(2)
    pipeline = Pipeline(split_model(layers, [1, 1]), 2, "zb_h1")
    check_step(nn.Sequential(*layers), pipeline, *batch(), mse_loss)


# What is not of the right type.


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ([1.0, 2.0], "a list"),
        ((torch.zeros(4),) * 2, "a tuple"),
        ({"a": torch.zeros(2)}, "a dict"),
        (torch.zeros(2, 4).numpy(), "a ndarray"),
    ],
)
def test_a_batch_that_is_no_tensor_is_refused(given, what):
    pipeline, x = Pipeline(linear_layers(1), 2), torch.zeros(2, 4)
    message = f"is {what}: give a tensor whose first dimension is the batch"
    with pytest.raises(TypeError, match=f"^inputs {message}"):
        pipeline.step(given, x, mse_loss)
    with pytest.raises(TypeError, match=f"^targets {message}"):
        pipeline.step(x, given, mse_loss)
    with pytest.raises(ValueError, match="inputs has no dimension: give a tensor"):
        pipeline.step(torch.tensor(1.0), torch.tensor(1.0), mse_loss)


def test_stages_that_are_no_modules_are_refused():
    with pytest.raises(TypeError, match=r"stage 1 is a function, not an nn.Module"):
        Pipeline([nn.Identity(), lambda x: x], 2)
    for stages in (nn.Linear(4, 4), PipelineStage([nn.Linear(4, 4)])):
        with pytest.raises(TypeError, match=f"stages is a {type(stages).__name__}: give modules"):
            Pipeline(stages, 2)
    assert Pipeline(nn.Sequential(nn.Identity(), nn.Identity()), 2).schedule.stages == 2


@pytest.mark.parametrize("model", [nn.Sequential(nn.Linear(4, 4)), nn.Linear(4, 4)])
def test_shards_of_a_model_that_is_not_split_are_refused(model, tmp_path):
    for function in (save_stages, load_stages):
        with pytest.raises(TypeError, match="make the stages with split_model"):
            function(model, tmp_path / "shards")
    assert not (tmp_path / "shards").exists()
