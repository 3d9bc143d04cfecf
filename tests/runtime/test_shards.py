import json
import os
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="pip install 'pipesim[torch]'")
from safetensors.torch import load_file, save_file  # noqa: E402
from torch import nn  # noqa: E402

from pipesim.base.errors import ConfigError  # noqa: E402
from pipesim.runtime import PipelineStage, load_stages, save_stages, split_model  # noqa: E402
from pipesim.runtime.shards.manifest import MANIFEST, file_sha256, read_manifest  # noqa: E402


class Odd(nn.Module):
    """Has a buffer, a frozen parameter, a number without dimensions and an empty tensor."""

    def __init__(self, width):
        super().__init__()
        self.frozen = nn.Parameter(torch.randn(width), requires_grad=False)
        self.scale = nn.Parameter(torch.randn((), dtype=torch.float64))
        self.short = nn.Parameter(torch.randn(width, dtype=torch.bfloat16))
        self.turned = nn.Parameter(torch.randn(width, 2).t())  # not contiguous
        self.register_buffer("steps", torch.randint(9, (3,)))
        self.register_buffer("nothing", torch.empty(0, width))
        self.register_buffer("scratch", torch.randn(2), persistent=False)


class Extra(nn.Module):
    def get_extra_state(self):
        return {"steps": 3}


def buffered(tensor):
    layer = nn.Module()
    layer.register_buffer("kept", tensor)
    return layer


def make_model(seed, width=4, tied=True):
    torch.manual_seed(seed)
    head = nn.Linear(width, 10, bias=False)
    embedding = nn.Embedding(10, width)
    if tied:
        head.weight = embedding.weight
    return nn.Sequential(
        embedding, nn.Linear(width, width), nn.ReLU(), nn.BatchNorm1d(width), Odd(width), head
    )


def values(model):
    return {key: tensor.clone() for key, tensor in model.state_dict().items()}


def same(model, state):
    found = model.state_dict()
    return found.keys() == state.keys() and all(torch.equal(found[k], state[k]) for k in state)


def save(model, counts, folder):
    save_stages(split_model(model, counts), folder)


def load(model, counts, folder):
    load_stages(split_model(model, counts), folder)


def refused(model, counts, folder):
    """Return the faults of a load that fails, one a line, and see that the model is as it was."""
    before = values(model)
    with pytest.raises(ConfigError) as caught:
        load(model, counts, folder)
    assert same(model, before)
    assert caught.value.source == str(folder)
    return caught.value.faults


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def shard_of(folder, stage):
    return folder / read_manifest(folder).shards[stage].file


def rewrite(folder, change):
    """Change the manifest's document in place."""
    document = json.loads((folder / MANIFEST).read_text())
    change(document)
    (folder / MANIFEST).write_text(json.dumps(document))


@pytest.fixture
def saved(tmp_path):
    """Return a folder that holds make_model(0) in stages of 2, 2 and 2 layers."""
    save(make_model(0), [2, 2, 2], tmp_path / "shards")
    return tmp_path / "shards"


@pytest.mark.parametrize("counts", [[2, 2, 2], [6], [1, 0, 3, 2], [0, 6], [1] * 6])
def test_what_was_saved_is_loaded_into_any_split(saved, counts):
    model = make_model(1)
    parameters = list(model.parameters())
    load(model, counts, saved)
    assert same(model, values(make_model(0)))
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    assert model[5].weight is model[0].weight
    assert not model[4].frozen.requires_grad
    assert model[4].scale.requires_grad


cuts = st.lists(st.integers(0, 6), max_size=6).map(
    lambda ends: [b - a for a, b in pairwise([0, *sorted(ends), 6])]
)


@settings(max_examples=30)
@given(cuts, cuts)
def test_any_split_saves_for_any_other(tmp_path_factory, before, after):
    folder = tmp_path_factory.mktemp("shards")
    save(make_model(0), before, folder)
    assert len(read_manifest(folder).shards) == len(before)
    model = make_model(1)
    load(model, after, folder)
    assert same(model, values(make_model(0)))


def test_what_a_saved_model_trains_on_a_loaded_one_does_too(saved):
    steps = []
    for model in (make_model(0), make_model(1)):
        load(model, [3, 3], saved)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        embedded = model[3](model[2](model[1](model[0](torch.tensor([1, 2, 3])))))
        model[5](embedded).square().sum().backward()
        optimizer.step()
        steps.append(values(model))
    assert same(model, steps[0])


def test_the_manifest_says_which_layer_is_where(saved):
    manifest = read_manifest(saved)
    names = [[layer.name for layer in shard.layers] for shard in manifest.shards]
    assert names == [["0", "1"], ["2", "3"], ["4", "5"]]
    assert names_in(saved) == sorted([MANIFEST, *(shard.file for shard in manifest.shards)])
    shard, layer = manifest.layers()["4"]
    assert shard is manifest.shards[2]
    described = {t.name: (t.kind, t.dtype, t.shape) for t in layer.tensors}
    assert described == {
        "frozen": ("parameter", "float32", (4,)),
        "scale": ("parameter", "float64", ()),
        "short": ("parameter", "bfloat16", (4,)),
        "turned": ("parameter", "float32", (2, 4)),
        "steps": ("buffer", "int64", (3,)),
        "nothing": ("buffer", "float32", (0, 4)),
    }


def test_tied_tensors_are_saved_once(saved):
    manifest = read_manifest(saved)
    [weight] = manifest.layers()["5"][1].tensors
    assert weight.tied_to == "0.weight"
    held = [key for shard in manifest.shards for key in load_file(saved / shard.file)]
    assert len(held) == len(set(held))
    assert set(held) == make_model(0).state_dict().keys() - {"5.weight"}


def test_ties_within_a_layer_and_of_whole_layers(tmp_path):
    def make_layer(seed):
        torch.manual_seed(seed)
        layer = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        layer[1].weight = layer[0].weight
        return layer

    layer = make_layer(0)
    save_stages(
        [PipelineStage([layer], names=["a"]), PipelineStage([layer], names=["b"])], tmp_path
    )
    first, again = (read_manifest(tmp_path).layers()[name][1] for name in "ab")
    assert [t.tied_to for t in first.tensors] == [None, None, "a.0.weight", None]
    assert [t.tied_to for t in again.tensors] == [
        "a.0.weight",
        "a.0.bias",
        "a.0.weight",
        "a.1.bias",
    ]
    other = make_layer(1)
    load_stages([PipelineStage([other, other], names="ba")], tmp_path)
    assert same(other, values(layer))


@pytest.mark.parametrize(
    "cut",
    [
        lambda flat: (flat[0], flat[1]),  # neighbours
        lambda flat: (flat, flat[0]),  # the same address
        lambda flat: (flat[:0], flat[:0]),  # nothing at all
    ],
)
def test_what_only_shares_a_storage_is_no_tie(tmp_path, cut):
    def make_layers(seed):
        torch.manual_seed(seed)
        return nn.Sequential(*(buffered(part) for part in cut(torch.randn(2, 3))))

    save(make_layers(0), [1, 1], tmp_path)
    stored = [layer.tensors[0] for _, layer in read_manifest(tmp_path).layers().values()]
    assert [tensor.tied_to for tensor in stored] == [None, None]
    loaded = make_layers(1)
    load(loaded, [2], tmp_path)
    assert same(loaded, values(make_layers(0)))


@pytest.mark.parametrize("tied_before", [True, False])
def test_other_ties_are_refused(tmp_path, tied_before):
    save(make_model(0, tied=tied_before), [3, 3], tmp_path)
    apart, tied = "apart", "tied to '0.weight'"
    was, wanted = (tied, apart) if tied_before else (apart, tied)
    assert refused(make_model(1, tied=not tied_before), [3, 3], tmp_path) == (
        f"{MANIFEST}: tensor '5.weight': saved {was}, the model's is {wanted}",
    )


def test_saving_again_replaces_all_of_the_old(saved):
    old = names_in(saved)
    (saved / "stage-0-notes.txt").write_text("mine")
    (saved / ".saving-killed").mkdir()
    save(make_model(2), [4, 2], saved)
    files = [shard.file for shard in read_manifest(saved).shards]
    assert names_in(saved) == sorted([MANIFEST, "stage-0-notes.txt", *files])
    assert not set(files) & set(old)
    model = make_model(1)
    load(model, [6], saved)
    assert same(model, values(make_model(2)))


def test_the_same_model_gives_the_same_files(saved, tmp_path):
    save(make_model(0), [2, 2, 2], tmp_path / "again")
    assert names_in(saved) == names_in(tmp_path / "again")
    for name in names_in(saved):
        assert (saved / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


@pytest.mark.parametrize("done", [0, 1, 2])  # of two shards and the manifest
@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_an_interrupted_save_leaves_the_old_checkpoint(saved, monkeypatch, done, error):
    old = {name: (saved / name).read_bytes() for name in names_in(saved)}
    replace, calls = os.replace, []

    def interrupted(source, target):
        calls.append(target)
        if len(calls) > done:
            raise error
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", interrupted)
        with pytest.raises(type(error)):
            save(make_model(2), [3, 3], saved)
    assert len(calls) == done + 1
    assert {name: (saved / name).read_bytes() for name in old} == old
    assert not [name for name in names_in(saved) if name.startswith(".")]
    model = make_model(1)
    load(model, [6], saved)
    assert same(model, values(make_model(0)))

    save(make_model(2), [3, 3], saved)
    assert len(names_in(saved)) == 3
    load(model, [6], saved)
    assert same(model, values(make_model(2)))


def test_a_save_that_fails_while_writing_leaves_no_trace(saved, monkeypatch):
    old = names_in(saved)

    def full(*_):
        raise OSError("disk full")

    monkeypatch.setattr("pipesim.runtime.shards.shards.save_file", full)
    with pytest.raises(OSError, match="disk full"):
        save(make_model(2), [3, 3], saved)
    assert names_in(saved) == old


def test_no_manifest(tmp_path):
    assert refused(make_model(1), [6], tmp_path / "none") == (
        "manifest.json: missing: nothing was saved here",
    )
    (tmp_path / "file").write_text("")
    [fault] = refused(make_model(1), [6], tmp_path / "file")
    assert fault == "manifest.json: Not a directory"


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b'{"version": 1, "shards": [}'])
def test_a_manifest_that_does_not_parse(saved, text):
    (saved / MANIFEST).write_bytes(text)
    [fault] = refused(make_model(1), [6], saved)
    assert fault.startswith("manifest.json: does not parse: ")


@pytest.mark.parametrize("document, found", [({"version": 2}, "2"), ({}, "None"), ([], "None")])
def test_a_manifest_of_another_version(saved, document, found):
    (saved / MANIFEST).write_text(json.dumps(document))
    assert refused(make_model(1), [6], saved) == (
        f"manifest.json: version is {found}, should be 1",
    )


def test_every_value_of_the_manifest_that_is_no_such_thing(saved):
    def change(document):
        document["shards"][0]["bytes"] = "many"
        del document["shards"][1]["sha256"]
        document["shards"][2]["colour"] = "blue"
        document["shards"][2]["layers"][0]["tensors"][0]["shape"] = 4

    rewrite(saved, change)
    faults = "\n".join(refused(make_model(1), [6], saved))
    for place in ("shards[0].bytes", "shards[1].sha256", "shards[2]", "tensors[0].shape"):
        assert place in faults
    assert "colour" in faults


def test_every_contradiction_of_the_manifest(saved):
    def change(document):
        document["shards"][0]["file"] = "../" + document["shards"][0]["file"]
        document["shards"][1]["layers"].append(document["shards"][0]["layers"][1])
        [head] = document["shards"][2]["layers"][1]["tensors"]
        head["tied_to"] = "9.weight"
        norm = document["shards"][1]["layers"][1]["tensors"][0]
        norm["tied_to"] = "1.weight"

    rewrite(saved, change)
    file = json.loads((saved / MANIFEST).read_text())["shards"][0]["file"]
    assert refused(make_model(1), [6], saved) == (
        f"manifest.json: file {file!r} is no name of a shard",
        "manifest.json: layer '3': tensor 'weight' (float32 (4,)) is tied to '1.weight' "
        "(float32 (4, 4))",
        "manifest.json: layer '1' is there twice",
        "manifest.json: layer '5': tensor 'weight' (float32 (10, 4)) is tied to '9.weight', "
        "which no shard holds",
    )


def test_every_damaged_shard_is_named(saved):
    missing, short, changed = (shard_of(saved, stage) for stage in range(3))
    missing.unlink()
    whole = short.read_bytes()
    short.write_bytes(whole[:-1])
    content = bytearray(changed.read_bytes())
    content[-1] ^= 1
    sha256 = file_sha256(changed)
    changed.write_bytes(content)
    assert refused(make_model(1), [6], saved) == (
        f"{missing.name} (stage 0, layers 0, 1): missing",
        f"{short.name} (stage 1, layers 2, 3): has {len(whole) - 1} bytes, {len(whole)} were saved",
        f"{changed.name} (stage 2, layers 4, 5): has the sha256 {file_sha256(changed)}, "
        f"{sha256} was saved",
    )


def test_a_shard_that_cannot_be_read(saved):
    shard = shard_of(saved, 1)
    shard.unlink()
    shard.mkdir()
    [fault] = refused(make_model(1), [6], saved)
    assert fault == f"{shard.name} (stage 1, layers 2, 3): cannot be read: Is a directory"


def forge(folder, stage, write):
    """Write another file in place of a shard, and let the manifest say that it is the right one."""
    path = shard_of(folder, stage)
    write(path)

    def change(document):
        document["shards"][stage]["bytes"] = path.stat().st_size
        document["shards"][stage]["sha256"] = file_sha256(path)

    rewrite(folder, change)
    return path.name


def test_a_shard_that_is_no_safetensors_file(saved):
    name = forge(saved, 1, lambda path: path.write_bytes(b"something else"))
    [fault] = refused(make_model(1), [6], saved)
    assert fault.startswith(f"{name} (stage 1, layers 2, 3): is no safetensors file: ")


def test_a_shard_with_other_tensors_than_its_manifest_says(saved):
    tensors = load_file(shard_of(saved, 0))
    tensors["1.weight"] = tensors["1.weight"].double()
    tensors["1.more"] = tensors.pop("1.bias")
    name = forge(saved, 0, lambda path: save_file(tensors, path))
    place = f"{name} (stage 0, layers 0, 1):"
    assert refused(make_model(1), [6], saved) == (
        f"{place} layer '1': tensor 'weight': float64 (4, 4), manifest.json says float32 (4, 4)",
        f"{place} layer '1': tensor 'bias': nothing, manifest.json says float32 (4,)",
        f"{place} tensor '1.more': float32 (4,), manifest.json does not know it",
    )


def test_layers_that_only_one_of_the_two_has(saved):
    file = shard_of(saved, 2).name
    model = make_model(1)[:5]
    model.add_module("more", nn.Linear(4, 4))
    assert refused(model, [3, 3], saved) == (
        f"{file}: layer '5': saved, the model has no such layer",
        "manifest.json: layer 'more': not saved, the model has it",
    )


def test_every_tensor_that_differs(saved):
    first, second = shard_of(saved, 0).name, shard_of(saved, 1).name
    model = make_model(1)
    model[1] = nn.Linear(4, 5, bias=False)
    model[3].double()
    model[2].register_buffer("slope", torch.zeros(()))
    place = f"{second}: layer '3': tensor"
    assert refused(model, [6], saved) == (
        f"{first}: layer '1': tensor 'weight': saved as float32 (4, 4), "
        "the model's is float32 (5, 4)",
        f"{first}: layer '1': tensor 'bias': saved as float32 (4,), the model has no such tensor",
        f"{second}: layer '2': tensor 'slope': not saved, the model has it",
        *(
            f"{place} {name!r}: saved as float32 (4,), the model's is float64 (4,)"
            for name in ("weight", "bias", "running_mean", "running_var")
        ),
    )


def test_faults_of_all_kinds_are_told_together(saved):
    shard_of(saved, 1).unlink()
    model = make_model(1, tied=False)
    model[1] = nn.Linear(4, 4, device="meta")
    model[3] = nn.LazyBatchNorm1d()
    text = "\n".join(refused_without_values(model, saved))
    assert "missing" in text
    assert "layer '1': tensor 'weight': has no values on the device meta" in text
    assert "layer '3': tensor 'weight': has no shape yet" in text
    assert "tensor '5.weight': saved tied to '0.weight', the model's is apart" in text


def refused_without_values(model, folder):
    with pytest.raises(ConfigError) as caught:
        load(model, [6], folder)
    return caught.value.faults


def test_layers_need_names_of_their_own(tmp_path):
    stages = [PipelineStage([nn.Linear(2, 2)]), PipelineStage([nn.Linear(2, 2), nn.ReLU()])]
    with pytest.raises(ConfigError, match="layer '0': in stage 0 and in stage 1; layers need"):
        save_stages(stages, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    save(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), [2], tmp_path)
    with pytest.raises(ConfigError, match="layer '0': in stage 0 and in stage 1; layers need"):
        load_stages(stages, tmp_path)


def test_keys_that_two_layers_have_are_refused(tmp_path):
    outer = nn.Module()
    outer.b = nn.Linear(2, 2, bias=False)
    stage = PipelineStage([outer, nn.Linear(2, 2, bias=False)], names=["a", "a.b"])
    with pytest.raises(ConfigError, match=r"layers 'a' and 'a\.b': both have a tensor"):
        save_stages([stage], tmp_path)


@pytest.mark.parametrize(
    "layer, fault",
    [
        (nn.Linear(2, 2, device="meta"), "tensor 'weight': has no values on the device meta"),
        (nn.LazyLinear(2), "tensor 'weight': has no shape yet"),
        (buffered(torch.eye(2).to_sparse()), "tensor 'kept': has the layout torch.sparse_coo"),
        (buffered(torch.zeros(2, dtype=torch.complex128)), "has the dtype complex128, which"),
        (buffered(torch.zeros(2).expand(3, 2)), "tensor 'kept': is expanded"),
        (Extra(), "'_extra_state' in its state_dict is no parameter or buffer"),
    ],
)
def test_what_cannot_be_saved_is_named(tmp_path, layer, fault):
    stages = split_model(nn.Sequential(nn.ReLU(), layer), [1, 1])
    with pytest.raises(ConfigError) as caught:
        save_stages(stages, tmp_path / "new")
    assert any(text.startswith("layer '1': ") and fault in text for text in caught.value.faults)
    assert not (tmp_path / "new").exists()


def test_an_empty_model(tmp_path):
    save_stages([], tmp_path)
    load_stages([PipelineStage([])], tmp_path)
    assert names_in(tmp_path) == [MANIFEST]


def test_the_folder_may_be_relative_or_text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(make_model(0), [6], "a/b")
    model = make_model(1)
    load(model, [6], Path("a") / "b")
    assert same(model, values(make_model(0)))
