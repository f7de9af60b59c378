"""A model that solves indirect-object sentences by three heads whose weights are written by hand, and its tokenizer.

Residual stream: [token one-hot | token met before | token to avoid | position one-hot].
0.0 looks for the same token earlier and writes it into the second part (at S2: S). 1.0 looks for a name there and copies it
into the third part (at the last token: S). 2.0 attends to the names except the one to avoid, and writes their tokens to
the logits. All other heads are zero.
"""

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

import interp
from tasks.prompts import IOI
from tasks.prompts.names import NAMES
from tasks.prompts.templates import OBJECTS, PLACES, TEMPLATES

STRENGTH = 200.0
DIFFERENCE = 5.0
N_CTX = 48


def make_words(n_names=12):
    """A tokenizer of whole words, with a few names."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()])
    words = [*TEMPLATES, "Today " + " ".join([*NAMES[:n_names], *PLACES, *OBJECTS])]
    tokenizer.train_from_iterator(words, trainers.WordLevelTrainer(special_tokens=["<unk>", "<pad>"]))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>")


def build_receiver_machine():
    tokenizer = make_words()
    n = len(tokenizer)
    model = interp.build(
        n_layers=3,
        d_model=3 * n + N_CTX,
        n_heads=4,
        d_head=n + N_CTX,
        d_vocab=n,
        n_ctx=N_CTX,
        attn_only=True,
        normalization_type=None,
        use_attn_scale=False,
    )
    model.tokenizer = tokenizer
    token, before, avoid, position = slice(0, n), slice(n, 2 * n), slice(2 * n, 3 * n), slice(3 * n, 3 * n + N_CTX)
    eye, places = torch.eye(n), torch.eye(N_CTX)
    is_name = torch.zeros(n)
    is_name[list(IOI(tokenizer).names.values())] = 1
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.embed.W_E[:, token] = eye
        model.pos_embed.W_pos[:, position] = places
        model.unembed.W_U[token] = eye
        first, second, third = (block.attn for block in model.blocks)

        first.W_Q[0, token, :n] = STRENGTH * eye
        first.W_K[0, token, :n] = eye
        first.W_Q[0, position, n:] = -2 * STRENGTH * places  # not itself
        first.W_K[0, position, n:] = places
        first.W_V[0, token, :n] = eye
        first.W_O[0, :n, before] = eye

        second.b_Q[0, 0] = STRENGTH
        second.W_K[0, before, 0] = is_name
        second.W_V[0, before, :n] = eye
        second.W_O[0, :n, avoid] = eye

        third.b_Q[0, :n] = STRENGTH
        third.W_Q[0, avoid, :n] = -2 * STRENGTH * eye
        third.W_K[0, token, :n] = is_name.diag()
        third.W_V[0, token, :n] = eye
        third.W_O[0, :n, token] = DIFFERENCE * eye
    return model
