from __future__ import annotations

import pytest

from penstock.control.examine.vitals import Vitals
from penstock.control.policies.autoflow import AutoFlow
from penstock.control.policies.drs import Drs, DrsLb
from penstock.control.policies.ds2 import Ds2
from penstock.control.policies.parse import parse
from penstock.control.policies.static import Static
from penstock.control.policies.switch import Switch
from penstock.control.treat.decision import Bounds, Decision, Policy
from penstock.errors import SettingError

_NAMES = ("switch", "streamswitch", "static", "autoflow", "drs", "drs_lb", "ds2")
_OWN_TEXTS = [
    "switch", "switch(unit)", "streamswitch", "static(4)", "autoflow(2.5s, 0.1)", "drs", "drs_lb", "ds2(0.6)",
]  # fmt: skip


def policy(text: str) -> Policy:
    return parse(text)[0]


class Own:
    def decide(self, vitals: Vitals, bounds: Bounds) -> Decision:
        return Decision("good", ())


@pytest.mark.parametrize(
    ("text", "kind", "margin"),
    [
        ("switch", Switch, None),
        (" Switch ( 0.35 ) ", Switch, 0.35),
        ("switch(0)", Switch, 0.0),
        ("switch(unit)", Switch, None),
        ("static(4)", Static, None),
        ("autoflow", AutoFlow, None),
        ("drs", Drs, None),
        ("drs(0.1)", Drs, 0.1),
        ("drs_lb(0.4)", DrsLb, 0.4),
        ("drs-lb", DrsLb, None),
        ("ds2", Ds2, None),
        ("ds2()", Ds2, None),
    ],
)
def test_texts(text: str, kind: type, margin: float | None) -> None:
    parsed, parsed_margin = parse(text)
    assert type(parsed) is kind
    assert parsed_margin == margin


def test_arguments_reach_the_policy() -> None:
    unit, plain = policy("switch(0.2, unit)"), policy("switch(0.2)")
    assert isinstance(unit, Switch)
    assert isinstance(plain, Switch)
    assert (unit.unit, plain.unit) == (True, False)
    flow = policy("autoflow(250 ms, 0.3)")
    assert isinstance(flow, AutoFlow)
    assert (flow.window_ms, flow.factor) == (250.0, 0.3)
    assert policy("static(7)") == Static(7)
    ds2 = policy("ds2(0.5)")
    assert isinstance(ds2, Ds2)
    assert ds2.target == 0.5


@pytest.mark.parametrize("text", _OWN_TEXTS)
def test_a_policy_prints_its_own_text(text: str) -> None:
    assert str(policy(text)) == text


def test_every_call_creates_a_new_policy() -> None:
    assert policy("ds2") is not policy("ds2")


@pytest.mark.parametrize(
    "text",
    [
        "", "magic", "switch(1)", "switch(-0.1)", "switch(0.2, units)", "switch(0.2, unit, 3)",
        "switch(nan)", "static", "static(0)", "static(four)", "static(4", "static(4) now",
        "autoflow(5 parsecs)", "autoflow(0s)", "autoflow(5s, 2)", "drs(a)", "ds2(0)", "ds2(1.1)",
    ],
)  # fmt: skip
def test_an_unknown_policy_is_refused_with_a_list_of_all(text: str) -> None:
    with pytest.raises(SettingError) as error:
        parse(text)
    assert repr(text) in error.value.message
    for name in _NAMES:
        assert name in error.value.hint


def test_the_error_says_what_is_wrong_with_an_argument() -> None:
    with pytest.raises(SettingError, match=r"the margin is 1\.5"):
        parse("drs(1.5)")


def test_own_policies_pass_through() -> None:
    own: Policy = Own()
    assert parse(own) == (own, None)
    made, _ = parse(Own)
    assert isinstance(made, Own)
    with pytest.raises(SettingError, match="unknown policy"):
        parse(17)  # type: ignore[arg-type]


def test_all_names_have_a_form_that_works() -> None:
    needed = {"static": "static(2)"}
    for name in _NAMES:
        assert callable(policy(needed.get(name, name)).decide)
