"""Forward hooks that live inside a `with` and are counted before and after.

TransformerLens's own contexts remove hooks by nesting level; here each hook is removed by its handle, so hooks that
the caller set before, or sets in a nested context, survive, and what the body leaves behind is noticed.

>>> import interp, torch
>>> model = interp.build(n_layers=1, d_model=8, n_heads=1, d_vocab=5, n_ctx=4, attn_only=True)
>>> with interp.add_hooks(model, [("hook_embed", lambda embed, hook: embed * 0)]):
...     silenced = model(torch.tensor([[1, 2]]))
>>> bool((model(torch.tensor([[1, 2]])) == silenced).all())
False
"""

import difflib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from transformer_lens.hook_points import HookPoint, LensHandle
from transformer_lens.HookedRootModule import HookedRootModule

from interp.errors import HookLeakError, InputError

HookFunction = Callable[..., Tensor | None]
"""Called as `function(activation, hook=hook_point)`; returns the new activation, or None to leave it."""


@contextmanager
def add_hooks(model: Any, hooks: Sequence[tuple[str, HookFunction]]) -> Iterator[None]:
    """Add forward hooks to a HookedTransformer, HookedEncoder or TransformerBridge for the time of the block.

    Raises `InputError` for a hook that the model doesn't have or has switched off (TransformerLens ignores some of
    these silently), and `HookLeakError` when the model ends with more hooks than it began with.
    """
    points = [find_hook_point(model, name, function) for name, function in hooks]
    before = _count_hooks(model)
    handles: list[tuple[HookPoint, LensHandle]] = []
    error: BaseException | None = None
    try:
        for point, (_, function) in zip(points, hooks, strict=True):
            point.add_hook(function)
            handles.append((point, point.fwd_hooks[-1]))
        yield
    except BaseException as raised:
        error = raised
        raise
    finally:
        for point, handle in handles:
            handle.hook.remove()
            point.fwd_hooks = [kept for kept in point.fwd_hooks if kept is not handle]
        after = _count_hooks(model)
        leaked = [name for name, count in after.items() if count > before.get(name, 0)]
        if leaked:
            raise HookLeakError(
                f"The block left hooks behind at {', '.join(leaked)}; remove them before the block ends, "
                "or add them before it begins."
            ) from error


@contextmanager
def lift_hooks(model: Any) -> Iterator[None]:
    """Set all forward hooks aside for the time of the block: a probe of ours is no business of the caller's hooks."""
    points = list({id(point): point for point in model.hook_dict.values()}.values())
    lifted = [(point, point._forward_hooks) for point in points]
    for point in points:
        point._forward_hooks = OrderedDict()
    try:
        yield
    finally:
        for point, hooks in lifted:
            point._forward_hooks = hooks


def find_hook_point(model: Any, name: str, function: HookFunction | None = None) -> HookPoint:
    """The hook point called `name`, checked to exist and to be switched on."""
    points = model.hook_dict
    if name not in points:
        close = difflib.get_close_matches(name, points, n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else "see `model.hook_dict` for its hooks."
        raise InputError(f"This {type(model).__name__} has no hook {name!r}; {hint}")
    try:
        if isinstance(model, HookedRootModule):
            model.check_hooks_to_add(points[name], name, function or (lambda activation, hook: None))  # type: ignore[arg-type]
        else:
            model.check_hooks_to_add(name)
    except (AssertionError, ValueError, RuntimeError) as refused:
        raise InputError(
            f"The hook {name!r} is switched off in this model's configuration and would never run: {refused}"
        ) from refused
    return points[name]


def _count_hooks(model: Any) -> dict[str, int]:
    """Hooks at each hook point, by PyTorch's own registers: aliases counted once."""
    counts = {}
    for name, point in model.hook_dict.items():
        counts[point.name or name] = len(point._forward_hooks) + len(point._backward_hooks)
    return counts
