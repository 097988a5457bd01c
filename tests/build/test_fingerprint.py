"""Fingerprints of engines."""

from __future__ import annotations

from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from trtllm_serve_cli.build.fingerprint import fingerprint_of_facts

VALUES = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
FACTS = st.dictionaries(st.text(max_size=5), VALUES | st.dictionaries(st.text(max_size=3), VALUES))


@given(FACTS, st.randoms(use_true_random=False))
def test_order_of_facts_does_not_matter(facts: dict[str, Any], random: Any) -> None:
    names = list(facts)
    random.shuffle(names)
    shuffled = {name: facts[name] for name in names}
    assert fingerprint_of_facts(shuffled) == fingerprint_of_facts(facts)


@given(FACTS, FACTS)
def test_different_facts_have_different_fingerprints(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    assume(repr(sorted(one.items(), key=repr)) != repr(sorted(other.items(), key=repr)))
    fingerprints = [fingerprint_of_facts(facts) for facts in (one, other)]
    assert fingerprints[0] != fingerprints[1] and {
        len(fingerprint) for fingerprint in fingerprints
    } == {16}
