"""The settings that the policy uses."""

from __future__ import annotations

from dataclasses import replace

from sidecar.policy import Policy
from sidecar.settings import SETTINGS, Settings, load
from sidecar.settings.policy import policy_config


def given(**settings: str) -> Settings:
    return load(environ={f"KAFKA_RETRY_{name}": text for name, text in settings.items()})


def test_the_delays_of_a_profile_that_is_not_accepted_limit_nothing() -> None:
    config = policy_config(given(PROFILES="native", DELAYS="1s", MAX_DELAY="10s"))
    assert (config.max_delay_ms, config.ibm_delays_ms) == (10_000, ())


def test_what_decides_for_an_origin_is_all_settings_with_its_own_in_their_place() -> None:
    settings = given(ORIGIN_POLICIES="{a: {max_attempts: 9, second_delay_ms: 5}}", DELAYS="1s", FATAL_EXCEPTION="E")
    config = policy_config(settings)
    (own,) = config.by_origin
    assert (own.name, own.max_attempts, own.ibm_delays_ms) == ("a", 9, (20_000, 5, 60_000))
    assert (own.delays_ms, own.fatal, own.by_origin) == (config.delays_ms, config.fatal, ())
    assert (config.max_attempts, config.ibm_delays_ms) == (None, (20_000, 40_000, 60_000))
    assert Policy(config).origin_allowed("a")


def test_every_setting_that_an_origin_can_have_changes_what_decides() -> None:
    values = {"BACKOFF": "{first: 7, attempts: 7}", "JITTER": "0.7", "EXCEPTION_POLICIES": "{E: slow}", "ORDER": "key"}
    general = policy_config(given(POLICIES="{slow: {}}"))
    for setting in SETTINGS:
        if setting.per_origin:
            text = f"{{a: {{{setting.yaml_key}: {values.get(setting.name, '77')}}}}}"
            (own,) = policy_config(given(ORIGIN_POLICIES=text, POLICIES="{slow: {}}")).by_origin
            assert replace(own, name="") != replace(general, by_name=()), setting.name
