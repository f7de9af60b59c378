"""A checkpoint comes back bit by bit, is there whole or not at all, and says what is wrong with a damaged one."""

import json
import os

import pytest
import torch
from safetensors.torch import load_file, save_file

from interp.errors import InputError
from interp.models.build import build
from interp.models.checkpoint import is_checkpoint, load_checkpoint, save
from interp.models.provenance import hash_weights
from tests.untyped import as_without_type_checks

TOKENS = torch.arange(24).reshape(2, 12) % 11
CONFIGS = {
    "attention only": {"attn_only": True},
    "rotary, grouped, gated": {
        "positional_embedding_type": "rotary",
        "n_key_value_heads": 1,
        "gated_mlp": True,
        "act_fn": "silu",
        "normalization_type": "RMS",
        "final_rms": True,
    },
    "local": {"act_fn": "gelu_new", "use_local_attn": True, "window_size": 3, "attn_types": ["local", "global"]},
    "half": {"attn_only": True, "dtype": torch.bfloat16},
}


def _build(**config):
    return build(n_layers=2, d_model=16, n_heads=2, d_vocab=11, n_ctx=12, device="cpu", seed=1, **config)


@pytest.fixture
def saved(tmp_path):
    folder = tmp_path / "model"
    save(_build(attn_only=True), folder)
    return folder


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_logits_come_back_bit_by_bit(config, tmp_path):
    model = _build(**config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    save(model, tmp_path / "deep" / "model")
    loaded = load_checkpoint(tmp_path / "deep" / "model", device="cpu")
    assert torch.equal(loaded(TOKENS), model(TOKENS))
    assert {k: v for k, v in vars(loaded.cfg).items() if k != "init_weights"} == {
        k: v for k, v in vars(model.cfg).items() if k != "init_weights"
    }
    assert loaded.provenance.source == "checkpoint"
    assert loaded.provenance.weights_sha256 == hash_weights(model)
    assert loaded.provenance.notes == model.provenance.notes
    assert not loaded.training


@pytest.mark.slow
def test_a_pretrained_model_comes_back_with_its_tokenizer(smollm2, tmp_path):
    save(smollm2, tmp_path / "model")
    loaded = load_checkpoint(tmp_path / "model", device="cpu")
    with torch.inference_mode():
        assert torch.equal(loaded(TOKENS), smollm2(TOKENS))
    assert loaded.tokenizer("The capital")["input_ids"] == smollm2.tokenizer("The capital")["input_ids"]
    assert loaded.provenance.model == "smollm2"
    assert loaded.provenance.max_logit_difference == smollm2.provenance.max_logit_difference


def test_only_safetensors_and_json_are_written(saved):
    assert sorted(path.name for path in saved.iterdir()) == ["interp.json", "model.safetensors"]
    assert json.loads((saved / "interp.json").read_text())["version"] == 1
    assert is_checkpoint(saved)
    assert not is_checkpoint(saved.parent)


def test_a_folded_and_untied_model_comes_back(tmp_path):
    model = _build(act_fn="gelu")
    model.process_weights_()
    save(model, tmp_path / "folded")
    assert torch.equal(load_checkpoint(tmp_path / "folded", device="cpu")(TOKENS), model(TOKENS))


def test_shared_storage_is_no_obstacle(tmp_path):
    model = _build(attn_only=True)
    model.unembed.W_U = torch.nn.Parameter(model.embed.W_E.detach().T)
    save(model, tmp_path / "tied")
    assert torch.equal(load_checkpoint(tmp_path / "tied", device="cpu")(TOKENS), model(TOKENS))


def test_another_dtype_can_be_asked_for(saved):
    loaded = load_checkpoint(saved, device="cpu", dtype=torch.float64)
    assert loaded.W_Q.dtype == loaded.cfg.dtype == torch.float64
    assert loaded.provenance.dtype == "float64"
    assert loaded.provenance.weights_sha256 == hash_weights(loaded)
    torch.testing.assert_close(
        loaded(TOKENS), load_checkpoint(saved, device="cpu")(TOKENS).double(), atol=1e-5, rtol=1e-5
    )


def test_a_seed_in_the_configuration_leaves_the_global_generators_alone(tmp_path):
    model = _build(attn_only=True)
    model.cfg.seed = 7
    save(model, tmp_path / "seeded")
    torch.manual_seed(3)
    before = torch.get_rng_state()
    loaded = load_checkpoint(tmp_path / "seeded", device="cpu")
    assert loaded.cfg.seed == 7
    assert torch.equal(before, torch.get_rng_state())


def test_the_tokenizer_comes_along(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    from transformers import PreTrainedTokenizerFast

    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<s>": 0, "a": 1, "b": 2}, unk_token="<s>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    model = _build(attn_only=True)
    model.tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", pad_token="<s>")
    model.cfg.tokenizer_name = "some/name-on-the-hub"
    save(model, tmp_path / "model")
    loaded = load_checkpoint(tmp_path / "model", device="cpu")
    assert loaded.tokenizer("a b a")["input_ids"] == [1, 2, 1]
    assert loaded.cfg.tokenizer_name == "some/name-on-the-hub"


def test_a_checkpoint_is_replaced_and_leaves_nothing_beside_it(saved):
    other = _build(attn_only=True, gamma=0.7)
    save(other, saved)
    assert torch.equal(load_checkpoint(saved, device="cpu")(TOKENS), other(TOKENS))
    assert os.listdir(saved.parent) == ["model"]


def test_a_write_that_fails_leaves_the_old_checkpoint(saved, monkeypatch):
    before = load_checkpoint(saved, device="cpu")(TOKENS)

    def fail(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("interp.models.checkpoint.save_file", fail)
    with pytest.raises(InputError, match=r"cannot be written to .*: No space left on device"):
        save(_build(attn_only=True, gamma=0.7), saved)
    assert torch.equal(load_checkpoint(saved, device="cpu")(TOKENS), before)
    assert os.listdir(saved.parent) == ["model"]


def test_other_things_in_a_folder_are_never_replaced(tmp_path, saved):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "notes.txt").write_text("mine")
    (saved / "notes.txt").write_text("mine")
    for folder in (tmp_path / "work", saved):
        with pytest.raises(
            InputError, match=r"holds other things than a checkpoint .*notes.txt.*give a new or an empty"
        ):
            save(_build(attn_only=True), folder)
        assert (folder / "notes.txt").read_text() == "mine"
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file: give the name of a folder"):
        save(_build(attn_only=True), tmp_path / "file")


def test_another_class_is_refused(tmp_path):
    with (
        as_without_type_checks(),
        pytest.raises(InputError, match="a Linear cannot be saved as a checkpoint, only a HookedTransformer can"),
    ):
        save(torch.nn.Linear(2, 2), tmp_path / "model")
    assert not (tmp_path / "model").exists()


def _truncate(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def _empty(folder):
    (folder / "model.safetensors").write_bytes(b"")


def _flip(folder):
    tensors = load_file(folder / "model.safetensors")
    tensors["embed.W_E"][0, 0] += 1
    save_file(tensors, folder / "model.safetensors")


def _drop(folder):
    tensors = load_file(folder / "model.safetensors")
    del tensors["embed.W_E"]
    save_file(tensors, folder / "model.safetensors")


def _describe(**changes):
    def change(folder):
        path = folder / "interp.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (_truncate, "model.safetensors is truncated or corrupt"),
        (_empty, "model.safetensors is truncated or corrupt"),
        (_flip, "its weights are not those that were saved; copy it again"),
        (_drop, "does not fit the configuration beside it"),
        (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors is missing"),
        (lambda folder: (folder / "interp.json").unlink(), "holds no interp.json: it is not a checkpoint"),
        (lambda folder: (folder / "interp.json").write_text("{"), "interp.json cannot be read as JSON"),
        (_describe(format="other"), "is not the description of a checkpoint that interp.save wrote"),
        (_describe(version=99), "has checkpoint version 99, this reads versions 1 and 2"),
        (_describe(config={"dtype": "float32", "wings": 2}), "has the unknown fields wings"),
        (_describe(config={"dtype": "float33"}), "has the unknown dtype 'float33'"),
        (_describe(provenance={}), "the provenance in .* is incomplete"),
    ],
)
def test_a_damaged_checkpoint_is_said(damage, text, saved):
    damage(saved)
    with pytest.raises(InputError, match=text):
        load_checkpoint(saved, device="cpu")


def test_a_missing_folder_is_said(tmp_path):
    with pytest.raises(InputError, match=r"there is no folder .*nowhere"):
        load_checkpoint(tmp_path / "nowhere")
