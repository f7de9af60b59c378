"""The transformer as it was first published: norms after the sums, and none before the unembedding.

    x <- ln1(x + attention(x))        x <- ln2(x + mlp(x))        logits = x W_U + b_U

(Vaswani et al. 2017, arXiv 1706.03762, section 3.1; the models of Murty et al. 2023, arXiv 2305.18741.) TransformerLens has
pre-norm blocks, x + attention(ln1(x)), and OLMo's x + ln1(attention(x)), in both of which the stream is the sum of what is
written to it. Here every block normalises the sum, so what a head writes passes all later norms before it is unembedded.

Hook points are those of any block: `hook_attn_out` and `hook_mlp_out` are what is added, `hook_resid_mid` and
`hook_resid_post` what the norms give. There is no final norm (`ln_final` is the identity), so the last layer's
`hook_resid_post` is what is unembedded. Norms stand behind the sums, so nothing can be folded into the weights that read.

>>> import interp, torch
>>> model = interp.build(n_layers=2, d_model=8, n_heads=2, d_vocab=5, n_ctx=4, act_fn="relu", norm_placement="post")
>>> type(model).__name__, "ln_final.w" in model.state_dict()
('PostNormTransformer', False)
>>> _, cache = model.run_with_cache(torch.tensor([[1, 2, 3]]))
>>> bool((cache["resid_post", 1].mean(-1).abs() < 1e-5).all())  # ln2 came last
True
"""

from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn
from transformer_lens import HookedTransformer, HookedTransformerConfig
from transformer_lens.cache.key_value_cache_entry import TransformerLensKeyValueCacheEntry
from transformer_lens.components import BertBlock, TransformerBlock

from interp.errors import InputError

_WITHOUT = (
    *("parallel_attn_mlp", "use_normalization_before_and_after"),
    *("use_attn_in", "use_split_qkv_input", "use_hook_mlp_in"),
)
"""Switches of the configuration that mean something only where a norm stands before a sublayer, or beside it."""


class PostNormBlock(TransformerBlock):
    """A block whose norms come after the sums; the modules and hook points are TransformerLens's own."""

    def forward(
        self,
        resid_pre: Float[Tensor, "batch pos d_model"],
        shortformer_pos_embed: Tensor | None = None,
        past_kv_cache_entry: TransformerLensKeyValueCacheEntry | None = None,
        attention_mask: Int[Tensor, "batch offset_pos"] | None = None,
    ) -> Float[Tensor, "batch pos d_model"]:
        """`hook_resid_post`; keys and values of earlier positions come from the cache as in any block."""
        _check(self.cfg)
        resid_pre = self.hook_resid_pre(resid_pre)
        attn_out = self.attn(
            query_input=resid_pre,
            key_input=resid_pre,
            value_input=resid_pre,
            past_kv_cache_entry=past_kv_cache_entry,
            attention_mask=attention_mask,
        )
        normed = self.ln1(resid_pre + self.hook_attn_out(attn_out))
        if self.cfg.attn_only:
            return self.hook_resid_post(normed)
        resid_mid = self.hook_resid_mid(normed)
        return self.hook_resid_post(self.ln2(resid_mid + self.apply_mlp(resid_mid)))


POST_NORM_BLOCKS = (PostNormBlock, BertBlock)
"""Blocks that add first and normalise then; TransformerLens's encoders have the second kind."""


class PostNormTransformer(HookedTransformer):
    """A HookedTransformer made of `PostNormBlock`s, without a final norm.

    Raises `InputError` for a configuration without norms or with switches that belong to other kinds of blocks.
    """

    def __init__(self, cfg: HookedTransformerConfig, **options: Any) -> None:
        _check(cfg)
        super().__init__(cfg, **options)
        for block in self.blocks:
            block.__class__ = PostNormBlock  # the same modules at the same places, with another forward pass
        self.ln_final = nn.Identity()
        self.setup()  # the final norm's hook points are gone

    def load_and_process_state_dict(self, state_dict: dict[str, Tensor], *args: Any, **options: Any) -> None:
        """Refused; `load_state_dict` loads weights as they are."""
        raise _refuse_processing()

    def fold_layer_norm(self, state_dict: dict[str, Tensor], *args: Any, **options: Any) -> dict[str, Tensor]:
        """Refused."""
        raise _refuse_processing()

    def center_writing_weights(self, state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
        """Refused."""
        raise _refuse_processing()


def _refuse_processing() -> InputError:
    return InputError(
        "the weights of a PostNormTransformer can't be folded or centred: its norms stand after the sums, so nothing reads "
        "through them alone; measure the weights as they are (`load_state_dict` loads them)"
    )


def _check(cfg: HookedTransformerConfig) -> None:
    if cfg.normalization_type is None:
        raise InputError("norm_placement='post' needs norms, but normalization_type is None: give 'LN' or 'RMS'")
    given = next((name for name in _WITHOUT if getattr(cfg, name)), None)
    if given is not None:
        raise InputError(f"{given}=True has no meaning in a block with norm_placement='post': leave it out")
    if cfg.positional_embedding_type == "shortformer" or str(cfg.original_architecture).startswith("Olmo"):
        raise InputError(
            f"norm_placement='post' can't be combined with the blocks of {cfg.original_architecture or 'shortformer'}: "
            "leave one of them out"
        )
