import pytest

from gravac.policies import POLICIES, DensePolicy, GravacPolicy, StaticPolicy, build, parse
from gravac.protocol import PolicySpec


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("gravac", GravacPolicy()),
        ("dense", DensePolicy()),
        ("static:cf=100", StaticPolicy(cf=100)),
        (" static: cf = 100 , warmup_windows=3 ", StaticPolicy(cf=100.0, warmup_windows=3)),
        ("gravac:epsilon=0.3,ladder=geometric", GravacPolicy(epsilon=0.3, ladder="geometric")),
        ("gravac:ladder=10/40/160", GravacPolicy(ladder=(10, 40, 160))),
        ("gravac:ladder=10/", GravacPolicy(ladder=[10.0])),
        ("gravac:smoothing=null,variant=paper", GravacPolicy(variant="paper", smoothing=None)),
    ],
)
def test_one_line_names_a_policy(text: str, policy: object) -> None:
    assert parse(text) == policy
    assert hash(parse(text)) == hash(policy)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "gravel",
            "policy='gravel' is unknown .did you mean 'gravac'.*; choose one of auto, dense, gravac, ",
        ),
        ("", "policy='' is unknown"),
        ("static", "setting cf: is missing.*Meaning: Compression factor"),
        ("static:cf", "'cf' must be written setting=value"),
        ("static:cf=10,cf=20", "'cf' is given twice"),
        ("static:cf=0.5", r"setting cf: .*at least 1 \(got 0.5\)"),
        ("static:cf=NaN", "setting cf: .*finite"),
        ("static:cf=ten", r"setting cf: must be a number \(got 'ten'\)"),
        ("static:cf=10,warmup_windows=1.5", "setting warmup_windows: .*whole number"),
        ("dense:cf=1", "has no setting 'cf'; it has none"),
        (
            "gravac:epsilom=1",
            "has no setting 'epsilom' .did you mean 'epsilon'.*; it has variant, ladder",
        ),
        ("gravac:epsilon=1.5", "setting epsilon: .*at most 1"),
        ("gravac:ladder=linear", "setting ladder.*'exponential' or 'geometric'"),
        ("gravac:ladder=20/10", "ladder must ascend strictly"),
        ("gravac:cf_min=100,cf_max=10", "cf_min must be above 1 and at most cf_max, got 100 and 10"),
        ("warmup:ramp=16/4", "ramp must ascend strictly from above 1"),
        ("warmup:ramp=1/4", "ramp must ascend strictly from above 1"),
        ("warmup:windows=0", "setting windows: .*at least 1"),
        ("gravac:preset=papers", "setting preset: .*'paper', 'paper-geometric' or 'paper-randomk'"),
        ("gravac:variant=paper,ladder=10/20", "ladder must be exponential or geometric for the paper"),
    ],
)
def test_a_bad_line_names_setting_value_and_what_is_allowed(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse(text)


def test_settings_must_be_json_values() -> None:
    with pytest.raises(ValueError, match="policy='static': settings must be numbers, texts or lists"):
        StaticPolicy(cf=object())


@pytest.mark.parametrize(
    "text",
    [
        "gravac",
        "dense",
        "static:cf=7",
        "gravac:ladder=3/9/27",
        "gravac:variant=paper",
        "gravac:preset=paper",
        "warmup:ramp=2/4",
    ],
)
def test_a_spec_rebuilds_the_policy_without_defaults(text: str) -> None:
    policy = parse(text)
    spec = policy.spec()
    assert set(spec.settings) == set(type(policy).Settings.model_fields)  # type: ignore[attr-defined]
    again = build(PolicySpec.model_validate_json(spec.model_dump_json()))
    assert again == policy
    assert again.spec().model_dump_json() == spec.model_dump_json()


def test_every_setting_of_every_policy_is_described() -> None:
    for policy in POLICIES.values():
        for name, field in policy.Settings.model_fields.items():
            assert field.description, f"{policy.name}.{name}"
            assert field.description.endswith("."), f"{policy.name}.{name}"


def test_a_spec_with_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="policy='x' is unknown"):
        build(PolicySpec(name="x"))


def test_a_preset_gives_the_published_settings_and_settings_beside_it_win() -> None:
    """GraVAC, section IV: exponential from 10 to 1000, geometric from 10 to 2000, Random-k from 1.5."""
    paper = GravacPolicy(preset="paper", epsilon=0.9)
    assert paper.settings.epsilon == 0.9
    assert (paper.settings.variant, paper.settings.omega, paper.gain_denominator()) == (
        "paper",
        0.01,
        "gradient",
    )
    assert paper.smoothing(32) == 0.32
    tops = {}
    for preset in ("paper", "paper-geometric", "paper-randomk"):
        policy = parse(f"gravac:preset={preset},variant=fixed")
        assert isinstance(policy, GravacPolicy)
        assert policy.settings.epsilon == 0.7
        tops[preset] = policy.ladder()[1], policy.ladder()[2], policy.ladder()[-1]
    assert tops == {
        "paper": (10, 20, 1000),
        "paper-geometric": (10, 20, 2000),
        "paper-randomk": (1.5, 3, 1000),
    }
    assert GravacPolicy().settings.preset == "none"
