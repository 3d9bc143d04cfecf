"""Layers measured: what is counted, by hand; what is timed, loosely; and the model left alone."""

import collections
import copy
import dataclasses
import itertools

import pytest

torch = pytest.importorskip("torch", reason="pip install 'pipesim[torch]'")

import pipesim as ps  # noqa: E402
from pipesim.cli import main  # noqa: E402
from pipesim.pipeline.partition.min_max import compositions  # noqa: E402
from pipesim.runtime import profile_layers, split_model  # noqa: E402
from pipesim.runtime.profile import layer_times  # noqa: E402
from pipesim.runtime.step.saved_bytes import activation_storages, saved_storages, storages_of  # noqa: E402

nn = torch.nn
ROWS, WIDTH, HIDDEN = 4, 8, 16
FLOAT = 4


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width):
        super().__init__()
        self.norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        normed = self.norm(x)
        x = x + self.attention(normed, normed, normed, need_weights=False)[0]
        return x + self.mlp(self.second_norm(x))


def profile(*layers, sample=None, **options):
    sample = torch.randn(ROWS, WIDTH) if sample is None else sample
    return profile_layers(nn.Sequential(*layers), sample, repeats=2, warmup=1, **options)


def test_bytes_and_operations_of_linear_layers_by_hand():
    found = profile(nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, 2, bias=False))
    assert found.param_bytes == ((WIDTH + 1) * HIDDEN * FLOAT, HIDDEN * 2 * FLOAT)
    assert found.stash_bytes == (ROWS * WIDTH * FLOAT, ROWS * HIDDEN * FLOAT)  # their inputs
    assert found.output_bytes == (ROWS * HIDDEN * FLOAT, ROWS * 2 * FLOAT)
    assert found.forward_gflop == (2 * ROWS * WIDTH * HIDDEN / 1e9, 2 * ROWS * HIDDEN * 2 / 1e9)
    assert found.labels["kind"] == ("Linear", "Linear")
    assert found.names == ("0", "1")
    assert "micro-batch 4x8 float32, medians of 2" in found.source


@pytest.mark.parametrize(
    ("layer", "kept"),
    [
        (nn.ReLU(), WIDTH),  # its output
        (nn.GELU(), WIDTH),  # its input
        (nn.Softmax(dim=-1), WIDTH),  # its output
        (nn.LayerNorm(WIDTH), WIDTH + 2),  # its input, mean and deviation
        (nn.Tanh(), WIDTH),
        (nn.Identity(), 0),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_a_layer_keeps(layer, kept):
    found = profile(layer, sample=torch.randn(ROWS, WIDTH, requires_grad=True))
    assert found.stash_bytes == (ROWS * kept * FLOAT,)
    assert found.forward_gflop == (0,)
    assert found.input_grad_ms[0] > 0
    has_weights = isinstance(layer, nn.LayerNorm)
    assert has_weights or found.weight_grad_ms == (0,)


def test_a_tensor_that_two_layers_keep_counts_once_and_at_the_later_one():
    found = profile(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 2))
    assert found.stash_bytes == (ROWS * WIDTH * FLOAT, 0, ROWS * HIDDEN * FLOAT)
    assert profile(nn.Linear(WIDTH, HIDDEN), nn.ReLU()).stash_bytes[1] == ROWS * HIDDEN * FLOAT


def test_a_sample_that_is_a_part_of_a_large_tensor_counts_alone():
    data = torch.randn(100 * ROWS, WIDTH)
    assert profile(nn.Linear(WIDTH, 2), sample=data[:ROWS]).stash_bytes == (ROWS * WIDTH * FLOAT,)


def test_an_embedding_has_no_input_gradient_and_a_tied_head_no_parameters():
    embedding, head = nn.Embedding(100, WIDTH), nn.Linear(WIDTH, 100, bias=False)
    head.weight = embedding.weight
    tokens = torch.randint(100, (ROWS, 3))
    found = profile(embedding, nn.GELU(), head, sample=tokens)
    assert found.param_bytes == (100 * WIDTH * FLOAT, 0, 0)
    assert found.stash_bytes[0] == tokens.nbytes
    assert found.input_grad_ms[0] == 0
    assert found.weight_grad_ms[0] > 0
    assert found.weight_grad_ms[1] == 0
    assert found.input_grad_ms[1] > 0
    assert found.input_grad_ms[2] > 0
    assert min(found.forward_ms) > 0


def test_gradients_are_timed_where_training_has_them():
    first, second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    first.requires_grad_(False)
    frozen = profile(first, second)  # there is nothing before the second that learns
    assert frozen.input_grad_ms == (0, 0)
    assert frozen.weight_grad_ms[0] == 0
    assert frozen.weight_grad_ms[1] > 0
    assert frozen.stash_bytes[0] == 0
    given = profile(first, second, sample=torch.randn(ROWS, WIDTH, requires_grad=True))
    assert min(given.input_grad_ms) > 0
    assert given.weight_grad_ms[0] == 0


def test_more_work_takes_longer():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        narrow, wide = nn.Linear(512, 512), nn.Linear(512, 512 * 16)
        sample = torch.randn(128, 512, requires_grad=True)
        small, large = (
            profile_layers([layer], sample, repeats=5, warmup=2) for layer in (narrow, wide)
        )
    finally:
        torch.set_num_threads(threads)
    assert large.forward_gflop[0] == 16 * small.forward_gflop[0]
    assert large.forward_ms[0] > 2 * small.forward_ms[0]
    assert large.total_ms()[0] > 2 * small.total_ms()[0]


class ManualClock:
    """Time that passes by as much as the layers say."""

    now = 0.0

    def install(self, monkeypatch):
        clock = layer_times.Clock(lambda: self.now, lambda start, end: end - start)
        monkeypatch.setattr(layer_times, "clock_of", lambda device: clock)


def test_times_are_medians_and_their_parts(monkeypatch):
    clock = ManualClock()
    clock.install(monkeypatch)

    class Timed(torch.autograd.Function):
        """Hands on what it gets, and takes so long in the backward."""

        @staticmethod
        def forward(ctx, x, backward_ms):
            ctx.backward_ms = backward_ms
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            clock.now += ctx.backward_ms
            return gradient, None

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, x):
            clock.now += next(forwards)
            return Timed.apply(x, 5) * Timed.apply(self.weight, 2)

    # Two runs to count, two to warm up, then three repeats of two passes.
    forwards = iter([50, 50, 99, 99, 3, 3, 3, 3, 4, 40])
    with pytest.warns(UserWarning, match="layer times are unsteady"):
        found = profile_layers([Layer()], torch.ones(2, 2, requires_grad=True), repeats=3, warmup=1)
    assert found.forward_ms == (3,)
    assert found.input_grad_ms == (5,)
    assert found.weight_grad_ms == (2,)


def test_unsteady_times_are_told_with_the_layers_name(monkeypatch):
    clock = ManualClock()
    clock.install(monkeypatch)
    numbers = itertools.count()

    class Slow(nn.Module):
        def __init__(self, times):
            super().__init__()
            self.times = times

        def forward(self, x):
            clock.now += self.times[next(numbers) // 8 % len(self.times)]
            return x * 2

    model = nn.ModuleDict({"steady": Slow([10.0]), "busy": Slow([10.0, 40.0])})
    with pytest.warns(UserWarning, match=r"layer times are unsteady.* busy \(.*: close other"):
        found = profile_layers(
            model, torch.ones(2, requires_grad=True), names=["steady", "busy"], repeats=20
        )
    steady, busy = found.labels["spread"]
    assert steady == "+0.0% +0.0%"
    assert busy.endswith(" unsteady")


def test_progress_counts_the_passes():
    seen = []
    profile(nn.Linear(WIDTH, 2), progress=lambda done, total: seen.append((done, total)))
    assert seen == [(number, 6) for number in range(1, 7)]


def test_the_model_is_left_as_it_was():
    model = nn.Sequential(
        nn.Linear(WIDTH, WIDTH),
        nn.BatchNorm1d(WIDTH),
        nn.ReLU(inplace=True),
        nn.Dropout(0.5),
        nn.Linear(WIDTH, 2),
    )
    model[3].eval()
    model[0].weight.grad = torch.ones_like(model[0].weight)
    before = copy.deepcopy(model.state_dict())
    sample = torch.randn(ROWS, WIDTH)
    random = torch.get_rng_state()
    given = sample.clone()
    profile_layers(model, sample, repeats=2)
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.equal(sample, given)
    after = model.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert [layer.training for layer in model] == [True, True, True, False, True]
    assert torch.equal(model[0].weight.grad, torch.ones_like(model[0].weight))
    assert model[4].weight.grad is None
    assert not any(layer._forward_hooks or layer._backward_hooks for layer in model)


def test_activations_may_be_tuples():
    class Pair(nn.Module):
        def forward(self, x):
            return x * 2, x

    class Join(nn.Module):
        def forward(self, pair):
            return pair[0] * pair[1]

    found = profile(nn.Linear(WIDTH, WIDTH), Pair(), Join())
    assert found.output_bytes == tuple(n * ROWS * WIDTH * FLOAT for n in (1, 2, 1))
    assert found.stash_bytes[2] == 2 * ROWS * WIDTH * FLOAT
    assert found.input_grad_ms[2] > 0
    assert found.wgrad_stash_bytes == (2 * ROWS * WIDTH * FLOAT, 0, 0)  # the input, one gradient


def test_weights_behind_several_outputs():
    class Weighed(nn.Module):
        """Puts out what its input goes into, and what only its weights do."""

        def __init__(self):
            super().__init__()
            self.weight, self.other = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.ones(3))

        def forward(self, x):
            return x + self.weight, 2 * self.other, x > 0

    sample = torch.randn(ROWS, WIDTH, requires_grad=True)
    found = profile(Weighed(), sample=sample)
    assert found.stash_bytes == (0,)
    # Behind the second output W has to start at the outputs: it needs the gradients of both.
    assert found.wgrad_stash_bytes == ((ROWS * WIDTH + 3) * FLOAT,)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"sample": torch.zeros(2, 3)},
            r"layer 0 \(0, Linear\) fails on 2x3 float32, in its forward: mat1",
        ),
        ({"sample": "text"}, "the sample is a str without a tensor in it"),
        ({"names": ["0", "9"]}, "Sequential has no submodule '9'"),
    ],
)
def test_what_cannot_be_measured_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        profile(nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, 2), **arguments)
    with pytest.raises(ValueError, match="repeats = 0"):
        profile_layers([nn.ReLU()], torch.zeros(2), repeats=0)


def test_a_layer_in_the_middle_that_does_not_fit_is_named():
    with pytest.raises(
        ValueError, match=r"layer 1 \(1, Linear\) fails on 4x16 float32, in its forward"
    ):
        profile(nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN + 1, 2))


def test_a_backward_that_fails_is_not_blamed_on_the_forward():
    class Checkpointed(nn.Module):
        def forward(self, x):
            return torch.utils.checkpoint.checkpoint(torch.tanh, x, use_reentrant=True)

    with pytest.raises(
        ValueError,
        match=r"layer 1 \(1, Checkpointed\) fails on 4x8 float32, in its backward: .*use_reentrant",
    ):
        profile(nn.Linear(WIDTH, WIDTH), Checkpointed())


@pytest.mark.parametrize("last", [False, True])
def test_a_layer_that_puts_out_what_no_tensor_is_found_in_is_named(last):
    @dataclasses.dataclass
    class Out:
        x: torch.Tensor

    class Wrap(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            return Out(self.linear(x))

    class Unwrap(nn.Module):
        def forward(self, out):
            return 2 * out.x

    layers = [nn.Linear(WIDTH, WIDTH), Wrap(), *([] if last else [Unwrap()])]
    with pytest.raises(
        ValueError,
        match=r"layer 1 \(1, Wrap\) puts out an object of class Out, in which no tensor is found: "
        r"give tensors in tuples, lists or dicts, or register it with torch\.utils\._pytree",
    ):
        profile(*layers)


def test_only_the_loss_is_called_loss():
    layers = {"loss": nn.Linear(WIDTH, WIDTH), "head": nn.Linear(WIDTH, WIDTH)}
    model, sample = nn.Sequential(collections.OrderedDict(layers)), torch.randn(ROWS, WIDTH)
    assert profile_layers(model, sample, repeats=1).names == ("loss", "head")
    with pytest.raises(ValueError, match="a layer of the model is called 'loss', as the one of"):
        profile_layers(model, sample, loss_fn=torch.sum)
    found = profile_layers(list(model), sample, loss_fn=torch.sum, repeats=1)
    assert found.names == ("0", "1", "loss")


def kept_by(stage, activation):
    """Return what a stage keeps, as hooks count it, and what it puts out."""
    taken = activation.detach().clone().requires_grad_(activation.requires_grad)
    output, saved = saved_storages(stage, taken, excluded=storages_of([stage]))
    return sum(storage.nbytes() for storage in saved.values()), output


def test_the_loss_is_the_last_layer_counted_by_hand():
    layers = nn.Linear(WIDTH, HIDDEN), nn.ReLU()
    targets = torch.randint(HIDDEN, (100 * ROWS,))[:ROWS]
    found = profile(*layers, loss_fn=nn.functional.cross_entropy, targets=targets)
    assert found.names == ("0", "1", "loss")
    assert found.labels["kind"] == ("Linear", "ReLU", "cross_entropy")
    # Kept are the logarithms of the probabilities, their targets, and the sum of the weights.
    assert found.stash_bytes[2] == ROWS * HIDDEN * FLOAT + ROWS * targets.itemsize + FLOAT
    assert found.output_bytes[2] == FLOAT
    assert found.param_bytes[2] == found.weight_grad_ms[2] == 0
    assert found.forward_ms[2] > 0
    assert found.input_grad_ms[2] > 0
    without = profile(*layers)
    assert found.stash_bytes[:2] == without.stash_bytes
    assert without.names == ("0", "1")


def test_a_loss_may_be_a_module_or_do_without_targets(monkeypatch):
    wide = torch.zeros(ROWS, HIDDEN)
    found = profile(nn.Linear(WIDTH, HIDDEN), loss_fn=nn.MSELoss(), targets=wide)
    assert found.labels["kind"][-1] == "MSELoss"
    clock = ManualClock()
    clock.install(monkeypatch)

    def square(output):
        clock.now += 7
        return output.square().mean().reshape(1)

    found = profile(nn.Linear(WIDTH, HIDDEN), loss_fn=square)
    assert found.labels["kind"][-1] == "square"
    assert found.forward_ms == (0, 7)


def test_wrong_losses_are_refused():
    layer, targets = nn.Linear(WIDTH, HIDDEN), torch.zeros(ROWS, HIDDEN)
    with pytest.raises(ValueError, match="targets without a loss: give loss_fn, too"):
        profile(layer, targets=targets)
    with pytest.raises(TypeError, match=r"loss_fn gives a tensor \(4, 16\): give a tensor with a"):
        profile(layer, loss_fn=nn.MSELoss(reduction="none"), targets=targets)
    with pytest.raises(TypeError, match="loss_fn gives a float"):
        profile(layer, loss_fn=lambda output: output.sum().item())
    with pytest.raises(
        ValueError, match=r"layer 1 \(loss, mse_loss\) fails on 4x16 float32, in its forward: "
    ):
        profile(layer, loss_fn=nn.functional.mse_loss, targets=targets[:, :3])
    with pytest.raises(ValueError, match="the model has no layers"):
        profile(loss_fn=torch.sum)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_gradients_are_measured_in_any_mode(mode):
    layers = nn.Linear(WIDTH, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.Linear(HIDDEN, 2)
    with mode():
        sample, targets = torch.randn(ROWS, WIDTH).requires_grad_(), torch.zeros(ROWS, 2)
        found = profile(*layers, sample=sample, loss_fn=nn.functional.mse_loss, targets=targets)
        assert not torch.is_grad_enabled()
        assert torch.is_inference_mode_enabled() == (mode is torch.inference_mode)
    assert min(found.input_grad_ms) > 0
    assert min(found.wgrad_stash_bytes[:3]) > 0  # of times a small difference may be lost
    assert (
        found.stash_bytes
        == profile(*layers, loss_fn=nn.functional.mse_loss, targets=targets.clone()).stash_bytes
    )


def test_a_model_made_in_inference_mode_is_refused():
    with torch.inference_mode():
        layer, norm = nn.Linear(WIDTH, HIDDEN), nn.BatchNorm1d(HIDDEN, affine=False)
    with pytest.raises(ValueError, match=r"layer 1 \(1, Linear\): weight was made under torch.inf"):
        profile(nn.Tanh(), layer)
    with pytest.raises(
        ValueError, match=r"\(0, BatchNorm1d\): running_mean was made under .* outs"
    ):
        profile(norm)


@pytest.mark.parametrize("counts", [[2, 2, 3], [1, 3, 3], [7], [4, 3], [3, 2, 1, 1]])
def test_the_layers_of_a_stage_keep_what_the_stage_keeps(counts):
    head = nn.Linear(32, 50, bias=False)
    layers = [nn.Embedding(50, 32), *(Block(32) for _ in range(4)), nn.LayerNorm(32), head]
    head.weight = layers[0].weight
    model = nn.Sequential(*layers)
    tokens = torch.randint(50, (3, 10))
    pipe = profile_layers(model, tokens, repeats=1, warmup=0).split(counts)
    activation = tokens
    for simulated, stage in zip(pipe.stages, split_model(model, counts), strict=True):
        kept, activation = kept_by(stage, activation)
        assert simulated.stash_bytes == kept
        assert simulated.output_bytes == activation.nbytes


def held_by(stage, activation):
    """Return what a stage holds until its backward, its input at least, and what it puts out."""
    taken = activation.detach().clone().requires_grad_(activation.requires_grad)
    output, saved = saved_storages(stage, taken, excluded=storages_of([stage]))
    saved |= activation_storages(taken)
    return sum(storage.nbytes() for storage in saved.values()), output


@pytest.mark.parametrize("counts", list(compositions(6, 2)))
def test_a_stage_holds_its_input_and_what_it_has_saved_of_its_output(counts):
    model = nn.Sequential(
        nn.Linear(WIDTH, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 9), nn.Sigmoid(), nn.GELU(), Double()
    )
    sample = torch.randn(ROWS, WIDTH)
    activation, held = sample, []
    for stage in split_model(model, counts):
        size, activation = held_by(stage, activation)
        held.append(size)
    pipe = profile_layers(model, sample, repeats=1, warmup=0).split(counts)
    assert [stage.stash_bytes for stage in pipe.stages] == held


def test_what_the_ends_of_a_stage_keep_by_hand():
    sample = torch.randn(ROWS, WIDTH).requires_grad_()
    found = profile(Double(), nn.Tanh(), nn.Linear(WIDTH, HIDDEN), nn.Tanh(), sample=sample)
    narrow, wide = ROWS * WIDTH * FLOAT, ROWS * HIDDEN * FLOAT
    assert found.stash_bytes == (0, 0, narrow, wide)  # what the first Tanh puts out is the Linear's
    assert found.first_stash_bytes == (narrow, narrow, 0, wide)  # no saved input
    assert found.last_stash_bytes == (0, narrow, 0, 0)


class Double(nn.Module):
    """Keeps nothing."""

    def forward(self, x):
        return x + x


def test_the_file_is_what_was_measured_and_what_split_and_run_take(tmp_path, capsys):
    found = profile(nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH), nn.ReLU())
    ps.write_layers(found, tmp_path / "layers.csv")
    assert ps.read_layers(tmp_path / "layers.csv").columns() == found.columns()
    (tmp_path / "model.toml").write_text(
        '[run]\nschedule = "1f1b"\nmicrobatches = 4\n[devices]\nranks = 2\n'
        '[layers]\nfile = "layers.csv"\nsplit = "time"\n'
    )
    for command in ("split", "run"):
        assert main([command, str(tmp_path / "model.toml")]) == 0
    assert main(["run", str(tmp_path / "model.toml"), "--schedule", "zb_h1"]) == 0
    assert "2 stages" in capsys.readouterr().out
    both = 2 * ROWS * (WIDTH + HIDDEN) * FLOAT  # inputs of Linears, and gradients of their outputs
    assert sum(found.wgrad_stash_bytes) == both + ROWS * HIDDEN * FLOAT  # and the input of GELU
    pipe = ps.read_layers(tmp_path / "layers.csv").split([2, 2])
    frees = sum(found.stash_bytes) - sum(found.wgrad_stash_bytes)
    assert sum(stage.input_grad_frees_bytes for stage in pipe.stages) == frees
