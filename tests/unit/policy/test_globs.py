"""Names and globs of exceptions, which senders write."""

from __future__ import annotations

from sidecar.policy.globs import TEXT_CHARACTERS_MAX, Globs


def test_a_glob_is_compared_with_the_beginning_of_a_long_text() -> None:
    """A sender decides how long it is, and a glob with several stars takes long over 900 kB."""
    globs = Globs(["com.*end", "org.*"])
    assert globs.matches("com.acme.end")
    assert not globs.matches("com." + "x" * TEXT_CHARACTERS_MAX + "end")
    assert globs.matches("org." + "x" * 900_000)


def test_a_name_is_compared_with_the_whole_text() -> None:
    name = "x" * (TEXT_CHARACTERS_MAX + 1)
    assert Globs([name]).matches(name)
    assert not Globs([name]).matches(name + "y")
