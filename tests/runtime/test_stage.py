"""A model's layers in order, and cutting them into stages."""

import pytest

torch = pytest.importorskip("torch", reason="pip install 'pipesim[torch]'")

from torch import nn  # noqa: E402

from pipesim import refine_split  # noqa: E402
from pipesim.runtime import (  # noqa: E402
    PipelineStage,
    model_layers,
    profile_layers,
    split_model,
)


def test_a_module_that_stands_there_twice_is_two_layers():
    relu = nn.ReLU()
    model = nn.Sequential(nn.Linear(2, 3), relu, nn.Linear(3, 2), relu)
    assert [name for name, _ in model_layers(model)] == ["0", "1", "2", "3"]
    stages = split_model(model, [2, 2])
    x = torch.randn(5, 2)
    assert torch.equal(stages[1](stages[0](x)), model(x))
    assert [name for name, _ in model_layers(model, ["0", "1", "2", "3"])] == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ([1, 1], "places 2 layers, but the model has 3"),
        ([1, 3], "has 3; a profile with the loss .*: take 1 off the last count$"),
        ([2, 3], "places 5 layers, but the model has 3$"),
        ([4, -1], "places 3 layers"),
        ([], "places 0 layers"),
    ],
)
def test_a_split_neither_loses_nor_repeats_a_layer(counts, message):
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    with pytest.raises(ValueError, match=message):
        split_model(model, counts)


def test_a_plan_from_a_profile_with_the_loss_fits_as_its_message_says():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    loss, labels = nn.functional.cross_entropy, torch.tensor([0, 1])
    profile = profile_layers(model, torch.zeros(2, 4), loss_fn=loss, targets=labels, repeats=2)
    counts = refine_split(profile, [2, 2], "1f1b", 4).counts
    with pytest.raises(ValueError, match="take 1 off the last count"):
        split_model(model, counts)
    stages = split_model(model, [*counts[:-1], counts[-1] - 1])
    assert sum(len(stage.layers) for stage in stages) == 3


def test_what_the_layers_are_must_be_known():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)

    with pytest.raises(ValueError, match=r"Model is no nn\.Sequential: name its layers"):
        model_layers(Model())
    with pytest.raises(ValueError, match="Model has no submodule 'third'"):
        model_layers(Model(), ["first", "third"])
    assert [name for name, _ in model_layers(Model(), ["second", "first"])] == ["second", "first"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["0", "0.1", "1"], r"'0\.1' lies within '0' and would run twice: take one of the two out"),
        (["0.1", "0"], r"'0\.1' lies within '0'"),
        (["1", "0", "1"], "'1' is there twice and would run twice: .* as a list of modules"),
        ([""], r"names = \[''\]: '' is the whole model; name its layers"),
        (["0", ""], "'' is the whole model"),
        ("01", r"names = '01' is a text: give a list of names, \['01'\]"),
    ],
)
def test_names_that_would_run_a_layer_twice_are_refused(names, message):
    inner = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model = nn.Sequential(inner, *(nn.Linear(2, 2) for _ in range(10)))
    with pytest.raises(ValueError, match=message):
        model_layers(model, names)
    assert [name for name, _ in model_layers(model, ["0.0", "0.1", "1", "10"])][-1] == "10"


def test_a_stage_that_recomputes_gives_the_same():
    layers = [nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)]
    x = torch.randn(4, 3, requires_grad=True)
    grads = []
    for recompute in (False, True):
        stage = PipelineStage(layers, recompute=recompute)
        grads.append(torch.autograd.grad(stage(x).square().sum(), [x, *stage.parameters()]))
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))
    with pytest.raises(ValueError, match="2 names for 3 layers"):
        PipelineStage(layers, names=["a", "b"])
