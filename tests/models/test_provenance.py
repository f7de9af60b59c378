"""Hashes see what matters and nothing else; tied weights count once; the catalogue names what can be loaded."""

import torch

import interp
from interp.models.catalogue import CATALOGUE, close_names
from interp.models.provenance import count_parameters, get_provenance, hash_weights
from interp.models.sources import find_source
from tests.conftest import make_tiny


def test_the_hash_sees_names_dtypes_shapes_and_values_but_not_order_or_layout() -> None:
    weights = torch.arange(6.0).reshape(2, 3)
    base = hash_weights({"a": weights, "b": torch.tensor(1.0)})
    assert hash_weights({"b": torch.tensor(1.0), "a": weights.T.contiguous().T}) == base
    changed = [
        {"a": weights, "c": torch.tensor(1.0)},
        {"a": weights.reshape(3, 2), "b": torch.tensor(1.0)},
        {"a": weights.bfloat16(), "b": torch.tensor(1.0)},
        {"a": weights + 1e-6, "b": torch.tensor(1.0)},
        {"a": weights},
    ]
    hashes = {hash_weights(mapping) for mapping in changed}
    assert len(hashes | {base}) == 6


def test_a_models_hash_is_that_of_its_parameters() -> None:
    model = interp.build(n_layers=1, d_model=8, n_heads=1, d_vocab=5, n_ctx=4, attn_only=True)
    assert hash_weights(model) == hash_weights(dict(model.named_parameters()))
    before = hash_weights(model)
    with torch.no_grad():
        model.blocks[0].attn.W_O[0, 0, 0] += 1
    assert hash_weights(model) != before


def test_tied_weights_count_once() -> None:
    tied, untied = make_tiny("llama_tied"), make_tiny("llama")
    assert count_parameters(untied) - count_parameters(tied) == 97 * 48
    assert interp.get_provenance(interp.load(tied)).n_parameters == count_parameters(tied)


def test_a_callers_own_model_has_provenance_too() -> None:
    model = interp.build(n_layers=1, d_model=8, n_heads=1, d_vocab=5, n_ctx=4, attn_only=True)
    del model.provenance
    provenance = get_provenance(model)
    assert (provenance.source, provenance.model_class, provenance.dtype) == ("object", "HookedTransformer", "float32")
    assert provenance.weights_sha256 == hash_weights(model)
    assert provenance.max_logit_difference is None


def test_the_catalogue_names_each_model_once_and_all_can_be_typed() -> None:
    names = [entry.name for entry in CATALOGUE]
    assert len(set(names)) == len(names)
    assert {find_source(name).kind for name in names if name != "smollm2"} == {"hub"}
    assert all(entry.parameters > 0 and entry.licence and entry.needs for entry in CATALOGUE)
    assert all(close_names(name)[0] == name for name in names)
