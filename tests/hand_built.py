"""A model whose heads are known exactly, because their weights are written by hand.

Residual stream: [token one-hot | position one-hot | previous token]. Layer 0 head 0 attends to the position before and
writes its token into the third part. Layer 1 head 0 looks for a key whose third part is the query's token, and writes
the key's token to the logits (induction). Layer 1 head 1 looks for the same token elsewhere (duplicate token) and writes
nothing. Layer 0 head 1 is all zero: uniform attention.
"""

import torch
from transformer_lens import HookedTransformer

import interp

STRENGTH = 200.0


def build_copying_machine(*, d_vocab: int = 30, n_ctx: int = 64) -> HookedTransformer:
    """Without norms, biases or attention scale, so that attention is one-hot to float32 precision."""
    d_model = 2 * d_vocab + n_ctx
    d_head = d_vocab + n_ctx
    model = interp.build(
        n_layers=2,
        d_model=d_model,
        n_heads=2,
        d_head=d_head,
        d_vocab=d_vocab,
        n_ctx=n_ctx,
        attn_only=True,
        normalization_type=None,
        use_attn_scale=False,
    )
    token, position, previous = slice(0, d_vocab), slice(d_vocab, d_vocab + n_ctx), slice(d_vocab + n_ctx, d_model)
    eye_token, eye_position = torch.eye(d_vocab), torch.eye(n_ctx)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.embed.W_E[:, token] = eye_token
        model.pos_embed.W_pos[:, position] = eye_position
        first, second = model.blocks[0].attn, model.blocks[1].attn

        first.W_Q[0, position, :n_ctx] = STRENGTH * eye_position
        first.W_K[0, position, :n_ctx] = eye_position.roll(1, dims=1)  # position p is found by the query at p + 1
        first.W_V[0, token, :d_vocab] = eye_token
        first.W_O[0, :d_vocab, previous] = eye_token

        second.W_Q[0, token, :d_vocab] = STRENGTH * eye_token
        second.W_K[0, previous, :d_vocab] = eye_token
        second.b_Q[0, d_vocab] = STRENGTH  # position 0 sees only itself in layer 0, so its third part is no predecessor
        second.W_K[0, position.start, d_vocab] = -2
        second.W_V[0, token, :d_vocab] = eye_token
        second.W_O[0, :d_vocab, token] = STRENGTH * eye_token

        second.W_Q[1, token, :d_vocab] = STRENGTH * eye_token
        second.W_K[1, token, :d_vocab] = eye_token
        second.W_Q[1, position, d_vocab:] = -2 * STRENGTH * eye_position  # not the query itself
        second.W_K[1, position, d_vocab:] = eye_position

        model.unembed.W_U[token] = eye_token
    return model


def build_reader(*, position: int, d_vocab: int = 10, n_ctx: int = 6) -> HookedTransformer:
    """Head 0 of layer 1 reads the token at `position` and raises its logit; no other head writes anything.

    The other heads attend as well: those of layer 0 to themselves, head 1 of layer 1 to every token alike.
    """
    d_model = 2 * d_vocab + n_ctx  # [token one-hot | position one-hot | what was read]
    model = interp.build(
        n_layers=2,
        d_model=d_model,
        n_heads=2,
        d_head=d_model,
        d_vocab=d_vocab,
        n_ctx=n_ctx,
        attn_only=True,
        normalization_type=None,
        use_attn_scale=False,
    )
    position_part = slice(d_vocab, d_vocab + n_ctx)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.embed.W_E[:, :d_vocab] = torch.eye(d_vocab)
        model.pos_embed.W_pos[:, position_part] = torch.eye(n_ctx)
        for head in range(2):
            model.blocks[0].attn.W_Q[head, position_part, position_part] = 20 * torch.eye(n_ctx)
            model.blocks[0].attn.W_K[head, position_part, position_part] = torch.eye(n_ctx)
        reader = model.blocks[1].attn
        reader.b_Q[0, d_vocab + position] = 20.0
        reader.W_K[0, position_part, position_part] = torch.eye(n_ctx)
        reader.W_V[0, :d_vocab, :d_vocab] = torch.eye(d_vocab)
        reader.W_O[0, :d_vocab, d_vocab + n_ctx :] = 5 * torch.eye(d_vocab)
        model.unembed.W_U[d_vocab + n_ctx :] = torch.eye(d_vocab)
    return model
