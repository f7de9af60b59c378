import pytest
import torch

import interp
from tests.hand_built import build_copying_machine

TOKENS = torch.arange(12).repeat(2, 2)


@pytest.fixture
def machine():
    return build_copying_machine()


def count_hooks(model):
    return sum(len(point._forward_hooks) for point in model.hook_dict.values())


def test_undone_after_the_block_and_after_an_exception(machine):
    before = machine(TOKENS)
    with interp.ablate_heads(machine, [(1, 0)]):
        assert not torch.equal(machine(TOKENS), before)
    with pytest.raises(KeyError), interp.ablate_heads(machine, [(1, 0)]):
        raise KeyError
    assert count_hooks(machine) == 0
    assert torch.equal(machine(TOKENS), before)


def test_the_users_own_hooks_survive(machine):
    seen = []
    machine.add_hook("blocks.1.attn.hook_z", lambda z, hook: seen.append("before"))
    with interp.ablate_heads(machine, [(1, 0)]), interp.ablate_heads(machine, [(1, 1)]):
        machine.run_with_hooks(TOKENS, fwd_hooks=[("hook_embed", lambda embed, hook: None)])
    machine(TOKENS)
    assert seen == ["before", "before"]
    assert count_hooks(machine) == 1


@pytest.mark.parametrize("fails", [False, True])
def test_a_leaked_hook_raises(machine, fails):
    def leave_a_hook():
        with interp.add_hooks(machine, []):
            machine.add_hook("blocks.0.hook_resid_pre", lambda residual, hook: None)
            if fails:
                raise KeyError

    with pytest.raises(interp.HookLeakError, match=r"blocks\.0\.hook_resid_pre"):
        leave_a_hook()


def test_unknown_and_switched_off_hooks_are_refused(machine):
    nothing = lambda activation, hook: None  # noqa: E731
    with (
        pytest.raises(interp.InputError, match=r"no hook 'blocks.0.attn.hook_zz'; did you mean .*blocks.0.attn.hook_z"),
        interp.add_hooks(machine, [("blocks.0.attn.hook_zz", nothing)]),
    ):
        pass
    with (
        pytest.raises(interp.InputError, match="switched off"),
        interp.add_hooks(machine, [("blocks.0.attn.hook_result", nothing)]),
    ):
        pass


def test_nothing_is_added_when_one_name_is_wrong(machine):
    with (
        pytest.raises(interp.InputError),
        interp.add_hooks(machine, [("hook_embed", lambda e, hook: e * 0), ("hook_embd", lambda e, hook: None)]),
    ):
        pass
    assert count_hooks(machine) == 0
