"""Every way of the hook is a method."""

from gravac_lab.bench import hook as hooks


def test_every_way_of_the_hook_is_a_method() -> None:
    """The two lists are in packages that cannot import each other."""
    from gravac_lab.programs.methods import agent_spec

    for _, method, _ in hooks.OTHERS.values():
        assert method in ("dense", "fp16") or agent_spec(method) is not None
