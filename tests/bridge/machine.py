"""A copying machine whose heads compose through a plane: known exactly, since its weights are written by hand.

Residual stream: [token | position | code of the previous token | output | 200 unused], one-hot but for the code. The code of a
token is a point on a circle, in two dimensions that are the bridge. Layer 0 head 0 attends to the position before and writes
its token's code; heads 0 of layers 1 and 2 look for a key whose code is that of the query's token and write the key's token to
the output. Heads 1 of these layers look for the same token, and write nothing. Layer 0 head 1 is all zero.
"""

import math

import torch
from transformer_lens import HookedTransformer

import interp

STRENGTH = 4000.0
D_VOCAB, N_CTX, UNUSED = 20, 32, 200
BOS = 0
"""To be put first: at position 0 there is no predecessor, and its code would be the token's own."""
PLANE = slice(D_VOCAB + N_CTX, D_VOCAB + N_CTX + 2)
INDUCTION, PREVIOUS = [(1, 0), (2, 0)], [(0, 0)]


def build_circle_machine() -> HookedTransformer:
    """Without norms, biases or attention scale, so that attention is one-hot to float32 precision."""
    model = interp.build(
        n_layers=3,
        d_model=2 * D_VOCAB + N_CTX + 2 + UNUSED,
        n_heads=2,
        d_head=D_VOCAB + N_CTX,
        d_vocab=D_VOCAB,
        n_ctx=N_CTX,
        attn_only=True,
        normalization_type=None,
        use_attn_scale=False,
    )
    token, position, output = (
        slice(0, D_VOCAB),
        slice(D_VOCAB, D_VOCAB + N_CTX),
        slice(PLANE.stop, PLANE.stop + D_VOCAB),
    )
    angles = torch.arange(D_VOCAB) * 2 * math.pi / D_VOCAB
    code = torch.stack([angles.cos(), angles.sin()], dim=1)  # [token 2]
    eye_token, eye_position = torch.eye(D_VOCAB), torch.eye(N_CTX)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.embed.W_E[:, token] = eye_token
        model.pos_embed.W_pos[:, position] = eye_position
        model.unembed.W_U[output] = 100 * eye_token
        first = model.blocks[0].attn
        first.W_Q[0, position, :N_CTX] = STRENGTH * eye_position
        first.W_K[0, position, :N_CTX] = eye_position.roll(1, dims=1)  # position p is found by the query at p + 1
        first.W_V[0, token, :D_VOCAB] = eye_token
        first.W_O[0, :D_VOCAB, PLANE] = code
        for layer in (1, 2):
            attention = model.blocks[layer].attn
            attention.W_Q[0, token, :2] = STRENGTH * code
            attention.W_K[0, PLANE, :2] = torch.eye(2)
            attention.W_V[0, token, :D_VOCAB] = eye_token
            attention.W_O[0, :D_VOCAB, output] = eye_token
            attention.W_Q[1, token, :D_VOCAB] = STRENGTH * eye_token
            attention.W_K[1, token, :D_VOCAB] = eye_token
    return model
