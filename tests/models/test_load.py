"""Names, folders, precisions, processing, and what bad input gets: one sentence, and nothing half done."""

import json
import logging
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub import errors as hub_errors
from transformer_lens.model_bridge import TransformerBridge

import interp
from interp.errors import InputError
from interp.models import sources
from interp.models.check import acting_hooks
from interp.models.provenance import count_parameters, hash_weights
from tests.conftest import make_tiny, make_tokenizer
from tests.untyped import as_without_type_checks

TOKENS = torch.randint(97, (2, 40), generator=torch.Generator().manual_seed(7))
Folder = Callable[..., Path]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every attempt to reach another machine, with the hub's offline mode off."""
    attempts: list[Any] = []

    def refuse(self: socket.socket, address: Any) -> None:
        attempts.append(address)
        raise OSError("no network in tests")

    def refuse_name(host: Any, *rest: Any, **more: Any) -> None:
        attempts.append(host)
        raise socket.gaierror("no network in tests")

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse_name)
    return attempts


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_a_folder_brings_its_tokenizer_and_asks_nobody(
    family: str, tiny_folder: Folder, connections: list[Any]
) -> None:
    folder = tiny_folder(family)
    model = interp.load(folder)
    assert connections == []
    torch.testing.assert_close(model(TOKENS), make_tiny(family)(TOKENS).logits, atol=2e-5, rtol=0)
    assert model.to_tokens("ab", prepend_bos=False).tolist() == [[67, 68]]
    assert model.to_tokens("ab", prepend_bos=True).tolist() == [[0, 67, 68]]
    provenance = interp.get_provenance(model)
    assert (provenance.model, provenance.source) == (str(folder), "folder")
    assert (provenance.revision, provenance.step) == (None, None)
    assert (provenance.dtype, provenance.processing, provenance.device) == ("float32", "raw", str(model.cfg.device))
    assert provenance.n_parameters == count_parameters(make_tiny(family))
    assert provenance.weights_sha256 == hash_weights(model)
    assert model.tokenizer.name_or_path == str(folder)


def test_an_object_asks_nobody(connections: list[Any]) -> None:
    hf_model = make_tiny("gpt2")
    hf_model.config.name_or_path = "openai-community/gpt2"
    model = interp.load(hf_model)
    assert connections == []
    assert model.tokenizer is None
    assert interp.get_provenance(model).source == "object"
    assert interp.get_provenance(model).model == "openai-community/gpt2"


def test_a_tokenizer_can_be_given_and_stays_as_it_was() -> None:
    tokenizer = make_tokenizer()
    before = dict(tokenizer.init_kwargs), tokenizer.encode("ab"), tokenizer.padding_side
    for family in ("gpt2", "llama_mlp_bias"):
        model = interp.load(make_tiny(family), tokenizer=tokenizer)
        assert model.tokenizer is not tokenizer
        assert model.to_string(torch.tensor([67, 68])) == "a b"  # a word-level decoder joins with spaces
    assert before == (dict(tokenizer.init_kwargs), tokenizer.encode("ab"), tokenizer.padding_side)


def test_a_chat_marker_is_not_put_in_front_of_text() -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"<|im_start|>": 0, "<|im_end|>": 1}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="<|im_end|>")), bos_token="<|im_start|>"
    )
    assert interp.load(make_tiny("llama"), tokenizer=tokenizer).cfg.default_prepend_bos is False
    assert interp.load(make_tiny("llama"), tokenizer=make_tokenizer()).cfg.default_prepend_bos is True


def test_the_largest_difference_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="interp"):
        interp.load(make_tiny("gpt2"))
    assert "is a HookedTransformer" in caplog.text
    assert "largest logit difference" in caplog.text


def test_loading_prints_nothing(tiny_folder: Folder, capfd: pytest.CaptureFixture[str]) -> None:
    folders = [tiny_folder("llama"), tiny_folder("olmo2")]
    capfd.readouterr()
    for folder in folders:
        interp.load(folder, dtype="bfloat16", processing="raw")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("family", ["llama", "llama_mlp_bias", "gemma2"])
def test_bfloat16_is_the_cast_of_the_checked_fp32_model(family: str) -> None:
    exact, rounded = interp.load(make_tiny(family)), interp.load(make_tiny(family), dtype="bfloat16")
    assert {parameter.dtype for parameter in rounded.parameters()} == {torch.bfloat16}
    assert rounded.cfg.dtype == torch.bfloat16
    difference = (rounded(TOKENS).float().log_softmax(-1) - exact(TOKENS).log_softmax(-1)).abs().max()
    assert 1e-4 < difference < 0.2
    provenance = interp.get_provenance(rounded)
    assert provenance.dtype == "bfloat16"
    assert provenance.max_logit_difference == interp.get_provenance(exact).max_logit_difference
    assert "bfloat16: mean KL divergence from the fp32 model" in provenance.notes[0]


def test_an_object_keeps_its_dtype_unless_told() -> None:
    hf_model = make_tiny("gpt2").to(torch.bfloat16)
    assert interp.load(hf_model).cfg.dtype == torch.bfloat16
    assert interp.load(hf_model, dtype=torch.float32).cfg.dtype == torch.float32
    assert hf_model.dtype == torch.bfloat16


def test_fp16_that_overflows_is_refused() -> None:
    hf_model = make_tiny("llama")
    with torch.no_grad():
        hf_model.model.embed_tokens.weight.mul_(1e6)
    with pytest.raises(InputError, match=r"does not survive dtype='float16': .* use float32"):
        interp.load(hf_model, dtype="fp16")


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "llama", "qwen3", "llama_mlp_bias", "gemma2"])
@pytest.mark.parametrize("processing", ["fold_norm", "fold_norm+center"])
def test_processing_is_recorded_and_keeps_the_predictions(family: str, processing: Any) -> None:
    raw, processed = interp.load(make_tiny(family)), interp.load(make_tiny(family), processing=processing)
    torch.testing.assert_close(
        processed(TOKENS).log_softmax(-1), raw(TOKENS).log_softmax(-1), atol=5e-5, rtol=0, check_device=False
    )
    provenance = interp.get_provenance(processed)
    assert provenance.processing == processing
    assert provenance.weights_sha256 != interp.get_provenance(raw).weights_sha256
    assert provenance.max_logit_difference == interp.get_provenance(raw).max_logit_difference
    centred = bool(processed.W_U.mean(-1).abs().max() < 1e-6)
    assert centred == (processing == "fold_norm+center" and family != "gemma2")  # whose soft cap would feel it
    assert ("not centred" in str(provenance.notes)) == (processing == "fold_norm+center" and family == "gemma2")
    assert acting_hooks(processed) == acting_hooks(raw)


def test_a_norm_that_cannot_be_folded_is_refused() -> None:
    with pytest.raises(InputError, match=r"cannot be folded: load it with processing='raw'"):
        interp.load(make_tiny("olmo2"), processing="fold_norm")


def test_own_checkpoints_come_back_exactly(tmp_path: Path) -> None:
    built = interp.build(n_layers=2, d_model=16, n_heads=2, d_vocab=11, n_ctx=12, act_fn="gelu", seed=3)
    interp.save(built, tmp_path / "mine")
    loaded = interp.load(tmp_path / "mine")
    assert torch.equal(built(TOKENS[:, :12] % 11), loaded(TOKENS[:, :12] % 11))
    assert interp.get_provenance(loaded).source == "checkpoint"
    assert interp.load(tmp_path / "mine", tokenizer=make_tokenizer()).to_tokens("a", prepend_bos=False).tolist() == [
        [67]
    ]
    with pytest.raises(InputError, match="was saved with processing='raw' and is loaded as it was saved"):
        interp.load(tmp_path / "mine", processing="fold_norm")


@pytest.mark.parametrize("family", ["gpt2", "gpt_neo", "gpt_neox", "llama_rope_llama3", "mistral_window", "qwen3"])
def test_a_loaded_model_can_be_saved_as_our_checkpoint(family: str, tiny_folder: Folder, tmp_path: Path) -> None:
    model = interp.load(tiny_folder(family), processing="fold_norm")
    interp.save(model, tmp_path / "mine")
    again = interp.load(tmp_path / "mine")
    assert torch.equal(again(TOKENS), model(TOKENS))
    assert again.to_tokens("ab").tolist() == model.to_tokens("ab").tolist()
    assert interp.get_provenance(again).reason == interp.get_provenance(model).reason
    assert interp.get_provenance(again).processing == "fold_norm"


def _put_in_hub_cache(folder: Path, cache: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lay the folder out as the hub's client would after a download of the branch main and the tag step1000."""
    repository = cache / f"models--{name.replace('/', '--')}"
    shutil.copytree(folder, repository / "snapshots" / COMMIT)
    (repository / "refs").mkdir()
    for reference in ("main", "step1000"):
        (repository / "refs" / reference).write_text(COMMIT)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))


def test_a_hub_name_is_loaded_from_the_hubs_cache_with_its_commit(
    tiny_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _put_in_hub_cache(tiny_folder("gpt_neox"), tmp_path / "cache", "someone/tiny-pythia", monkeypatch)
    model = interp.load("someone/tiny-pythia", revision="step1000")
    provenance = interp.get_provenance(model)
    assert (provenance.source, provenance.model) == ("hub", "someone/tiny-pythia")
    assert (provenance.revision, provenance.step) == (COMMIT, 1000)
    assert model.to_tokens("ab", prepend_bos=False).tolist() == [[67, 68]]
    torch.testing.assert_close(model(TOKENS), make_tiny("gpt_neox")(TOKENS).logits, atol=2e-5, rtol=0)
    assert interp.get_provenance(interp.load("someone/tiny-pythia")).step is None


@pytest.mark.parametrize(
    ("name", "close"), [("gtp2", "did you mean gpt2"), ("pythia-70", "EleutherAI/pythia-70m"), ("SmolLM", "smollm2")]
)
def test_an_unknown_name_offers_close_ones(name: str, close: str) -> None:
    with pytest.raises(InputError, match=close) as caught:
        interp.load(name)
    assert f"'{name}' is not on this machine and the Hugging Face hub cannot be reached" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_hub_that_cannot_be_reached_is_said_at_once(connections: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "getproxies", dict)
    with pytest.raises(InputError, match=r"'gpt2' is not on this machine and the Hugging Face hub cannot be reached"):
        interp.load("gpt2")
    assert set(connections) == {"huggingface.co"}  # its name is looked up; the client's six attempts are not made
    assert len(connections) <= 2


def _hub_error(kind: type[Exception]) -> OSError:
    import httpx

    response = httpx.Response(404, request=httpx.Request("GET", "https://hub.invalid"))
    error = OSError("see above")
    error.__cause__ = kind("not there", response=response) if issubclass(kind, hub_errors.HfHubHTTPError) else kind("x")
    return error


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (
            hub_errors.RepositoryNotFoundError,
            "there is no model 'gptt2' on the Hugging Face hub, or it is private; did",
        ),
        (hub_errors.GatedRepoError, "gptt2 is gated: accept its licence"),
        (hub_errors.RevisionNotFoundError, "gptt2 has no revision 'v9' on the Hugging Face hub"),
        (hub_errors.HFValidationError, "there is no model 'gptt2'"),
    ],
)
def test_what_the_hub_answers_becomes_one_sentence(
    kind: type[Exception], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise _hub_error(kind)

    monkeypatch.setattr(sources.AutoConfig, "from_pretrained", fail)
    with pytest.raises(InputError, match=text):
        interp.load("gptt2", revision="v9")


def test_bad_arguments_are_named(tiny_folder: Folder, tmp_path: Path) -> None:
    folder = tiny_folder("gpt2", tokenizer=False)
    assert interp.load(folder).tokenizer is None
    for arguments, text in [
        ({"dtype": "int8"}, "dtype='int8' is not known: choose one of float32, bfloat16, float16"),
        ({"device": "cuda:77"}, "device 'cuda:77' cannot be used"),
        ({"device": "tpu"}, "device 'tpu' cannot be used"),
        ({"revision": "main"}, "revision='main' was given, but .* is local"),
    ]:
        with pytest.raises(InputError, match=text):
            interp.load(folder, **arguments)
    with as_without_type_checks():
        with pytest.raises(InputError, match="a dict cannot be loaded: give a name, a path, or a Hugging Face model"):
            interp.load({})
        with pytest.raises(
            InputError, match=r"processing='folded' is not known: choose one of raw, fold_norm, fold_no"
        ):
            interp.load(folder, processing="folded")
    for missing in ("./no/such", "/no/such/folder", "model.gguf", tmp_path / "nothing"):
        with pytest.raises(InputError, match="there is no file or folder"):
            interp.load(missing)


def test_folders_without_a_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds no model: neither a config\.json nor a checkpoint of interp\.save"):
        interp.load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(InputError, match=r"holds no weights: model\.safetensors is missing"):
        interp.load(tmp_path)
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(InputError, match=r"is a file but not a \.gguf file"):
        interp.load(tmp_path / "notes.txt")


def test_pickles_are_never_read(tiny_folder: Folder) -> None:
    folder = tiny_folder("gpt2")
    (folder / "model.safetensors").unlink()
    torch.save(make_tiny("gpt2").state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"as pytorch_model\.bin only, and pickles are not read .* save_pretrained"):
        interp.load(folder)


def test_pickles_on_the_hub_are_never_read(
    tiny_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_folder("gpt2")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    _put_in_hub_cache(folder, tmp_path / "cache", "someone/pickled", monkeypatch)
    with pytest.raises(InputError, match="someone/pickled holds its weights as a pickle only"):
        interp.load("someone/pickled")


def test_remote_code_is_never_run(tiny_folder: Folder, tmp_path: Path) -> None:
    folder = tiny_folder("gpt2")
    witness = tmp_path / "ran"
    (folder / "modeling_evil.py").write_text(f"open({str(witness)!r}, 'w')\n")
    config = json.loads((folder / "config.json").read_text())
    remote = {"AutoConfig": "modeling_evil.C", "AutoModelForCausalLM": "modeling_evil.M"}
    config |= {"model_type": "evil", "auto_map": remote}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="cannot be loaded"):
        interp.load(folder)
    assert not witness.exists()


def test_damaged_weights_are_refused(tiny_folder: Folder) -> None:
    folder = tiny_folder("llama")
    whole = (folder / "model.safetensors").read_bytes()
    for damaged in (whole[: len(whole) // 2], b"\x00" * 100, b""):
        (folder / "model.safetensors").write_bytes(damaged)
        with pytest.raises(InputError, match="a_llama_model cannot be loaded") as caught:
            interp.load(folder)
        assert "\n" not in str(caught.value)


def test_missing_weights_are_not_made_up(tiny_folder: Folder) -> None:
    from safetensors.torch import load_file, save_file

    folder = tiny_folder("llama")
    state = load_file(folder / "model.safetensors")
    del state["model.layers.1.mlp.up_proj.weight"]
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"lacks 1 of its weights, first model\.layers\.1\.mlp\.up_proj\.weight"):
        interp.load(folder)


def test_a_damaged_configuration_is_refused(tiny_folder: Folder) -> None:
    folder = tiny_folder("llama")
    (folder / "config.json").write_text("{")
    with pytest.raises(InputError, match="a_llama_model cannot be loaded"):
        interp.load(folder)


def test_encoders_are_refused(tmp_path: Path) -> None:
    from transformers import BertConfig, BertForMaskedLM, T5Config, T5ForConditionalGeneration

    small = {"vocab_size": 97, "hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 6}
    BertForMaskedLM(BertConfig(**small)).save_pretrained(tmp_path / "bert")
    with pytest.raises(InputError, match="is a BertForMaskedLM, not a decoder-only language model"):
        interp.load(tmp_path / "bert")
    t5 = T5Config(vocab_size=97, d_model=48, d_kv=8, d_ff=96, num_layers=1, num_heads=6, decoder_start_token_id=0)
    T5ForConditionalGeneration(t5).save_pretrained(tmp_path / "t5")
    with pytest.raises(InputError, match="is a T5ForConditionalGeneration, not a decoder-only language model"):
        interp.load(tmp_path / "t5")


def test_the_global_generators_are_not_moved(tiny_folder: Folder) -> None:
    folder = tiny_folder("gpt2")
    torch.manual_seed(5)
    state, grad = torch.get_rng_state(), torch.is_grad_enabled()
    model = interp.load(folder)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled() == grad
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_bridge_can_be_trained_on() -> None:
    model = interp.load(make_tiny("llama_mlp_bias"))
    assert isinstance(model, TransformerBridge)
    assert all(parameter.requires_grad for parameter in model.parameters())
