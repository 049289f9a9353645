"""The decorator of rules."""

from __future__ import annotations

import pytest

from graphopt.rewrite import Exact, Rule, rule


def test_fusions_are_applied_by_fuse_builtin() -> None:
    @rule(lambda op, x: op.Erf(x), numerics=Exact, kind="fusion", phase=2)
    def some_fusion(op, m, x):  # type: ignore[no-untyped-def]
        """Erf(x) → x."""
        return x

    assert (some_fusion.name, some_fusion.family) == ("some-fusion", "test_rule")
    assert (some_fusion.pass_, some_fusion.phase, some_fusion.is_fusion) == ("fuse-builtin", 2, True)
    assert (some_fusion.anchors, some_fusion.pattern) == (("Erf",), "test rule")
    assert some_fusion.summary == "Erf(x) → x."


def test_former_keywords_warn_at_the_line_of_the_caller() -> None:
    def make(**keywords: object) -> Rule:
        return rule(lambda op, x: op.Erf(x), numerics=Exact, **keywords)(make)  # type: ignore[arg-type]

    with pytest.warns(DeprecationWarning, match='use kind="fusion"') as caught:
        assert make(fuses=True).is_fusion
    assert caught[0].filename == __file__ and caught[0].lineno == make.__code__.co_firstlineno + 1
    with pytest.warns(DeprecationWarning, match="use phase=2"):
        assert make(last=True).phase == 2
    with pytest.warns(DeprecationWarning, match="use pass_="):
        assert make(by="decompose").pass_ == "decompose"
    with pytest.raises(TypeError, match=r"called 'bye'; help\(rule\) lists all"):
        make(bye="decompose")
    with pytest.raises(TypeError, match=r"by=\.\.\. and pass_=\.\.\. of rule\(\) exclude each other"):
        make(by="decompose", pass_="cse")
    with pytest.raises(TypeError, match=r"last=\.\.\. and phase=2"):
        make(last=False, phase=2)
