"""The settings as Kafka Connect's tools read them: the connector's, the plugin's, and the result of a validation.

A setting `MAX_DELAY` is `max.delay` here, a property of the Kafka clients `client.` and its own name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Final

from fastapi import APIRouter, Body, Depends, Path
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from sidecar.api.bodies import ErrorBody
from sidecar.api.connect.bodies import (
    KEY_EXAMPLE,
    PLUGIN_EXAMPLE,
    Config,
    ConfigInfos,
    ConfigKey,
    ConfigType,
    ConfigValue,
    Importance,
    Plugin,
)
from sidecar.api.connect.connector import CONNECTOR_CLASS, Worker
from sidecar.api.connect.group import example
from sidecar.api.guard import PaidThread
from sidecar.api.messages.changes import require_json
from sidecar.settings import Settings
from sidecar.settings.client import is_secret
from sidecar.settings.kinds import NotAllowed
from sidecar.settings.setting import Setting
from sidecar.settings.table import SETTINGS

GROUP: Final = "Retry Sidecar"
VALUE_CHARACTERS_MAX: Final = 4_096
"""A longer value is not looked into: YAML of the size of a whole body can take seconds."""
VALIDATIONS_AT_A_TIME: Final = 1
PLUGIN: Final = "/connector-plugins/{plugin}"
_SHORT: Final = CONNECTOR_CLASS.rpartition(".")[2]
_NAMES: Final = frozenset({CONNECTOR_CLASS, _SHORT, _SHORT.removesuffix("Connector")})
_OWN: Final = {
    "name": "Name of the connector: STREAMS_APP_ID.",
    "connector.class": f"Always {CONNECTOR_CLASS}.",
    "tasks.max": "Maximum number of instances with partitions: one for each partition of the retry topic.",
    "topics": "The shared retry topic: INPUT_TOPIC.",
}
"""The properties of a connector's configuration besides the settings."""
_UNKNOWN_PLUGIN: Final[dict[int | str, dict[str, object]]] = {
    404: {"model": ErrorBody, "description": "There is no such plugin."},
    "4XX": {"model": ErrorBody, "description": "Any other error in the request."},
}


def _key_of(setting: Setting) -> str:
    return setting.name.lower().replace("_", ".")


PluginName = Annotated[
    str, Path(description="Class of the connector, or the last part of its name.", examples=[CONNECTOR_CLASS])
]
Given = Annotated[
    dict[str, str | bool | int | float | None], Body(examples=[{"connector.class": CONNECTOR_CLASS, "max.delay": "7d"}])
]
_Row = tuple[str, ConfigType, str | None, Importance, str]
_BY_KEY: Final = {_key_of(setting): setting for setting in SETTINGS}


def connector_config(settings: Settings) -> dict[str, str]:
    """Return the effective settings as a connector's configuration: all text, nothing that is secret or not set."""
    config = {}
    for key, setting in _BY_KEY.items():
        value = settings.group_id if setting.name == "GROUP_ID" else getattr(settings, setting.attribute)
        if value is not None and not setting.secret:
            config[key] = setting.kind.show(value)
    shown = {f"client.{name}": value for name, value in sorted(settings.client.items()) if not is_secret(name)}
    return {**config, **shown}


def definitions() -> list[ConfigKey]:
    """Return the settings of a connector's configuration, in order."""
    defaults = {each.name: each.default for each in dataclasses.fields(Settings)}
    own: list[_Row] = [(key, "STRING", None, "HIGH", words) for key, words in _OWN.items()]
    rest: list[_Row] = [
        (key, _type_of(setting), _default(setting, defaults), "HIGH" if setting.common else "LOW", setting.help)
        for key, setting in _BY_KEY.items()
    ]
    return [
        ConfigKey(
            name=key,
            type=kind,
            required=key == "connector.class",
            default_value=default,
            importance=importance,
            documentation=words,
            group=GROUP,
            order_in_group=order,
            display_name=key,
            dependents=[],
        )
        for order, (key, kind, default, importance, words) in enumerate([*own, *rest], 1)
    ]


def _type_of(setting: Setting) -> ConfigType:
    if setting.secret:
        return "PASSWORD"
    return "BOOLEAN" if setting.kind.is_switch else "LIST" if setting.kind.is_list else "STRING"


def _default(setting: Setting, defaults: Mapping[str, object]) -> str | None:
    value = defaults[setting.attribute]
    unset = value is None or value is dataclasses.MISSING or setting.secret
    return None if unset else setting.kind.show(value)


def validated(config: Mapping[str, str | None]) -> ConfigInfos:
    """Return the result of validating a configuration; it never contains the value of a secret."""
    configs = [Config(definition=each, value=_value(each, config.get(each.name))) for each in definitions()]
    errors = sum(len(each.value.errors) for each in configs)
    return ConfigInfos(name=CONNECTOR_CLASS, error_count=errors, groups=[GROUP], configs=configs)


def _value(key: ConfigKey, given: str | None) -> ConfigValue:
    errors = []
    setting = _BY_KEY.get(key.name)
    value = given if given is not None else key.default_value
    if key.name == "connector.class" and given not in _NAMES:
        errors.append(f"connector.class={given!r:.100} is not allowed: it must be {CONNECTOR_CLASS}")
    elif setting is not None and given is not None and len(given) > VALUE_CHARACTERS_MAX:
        errors.append(
            f"{key.name} has {len(given):,} characters: more than {VALUE_CHARACTERS_MAX:,} are not looked into here; "
            "`retry-sidecar run --show-settings` does"
        )
    elif setting is not None and given is not None:
        try:
            setting.kind.parse(given)
        except NotAllowed as mistakes:
            errors += [f"{key.name}: {line}" for line in mistakes.lines]
        except ValueError:
            shown = key.name if setting.secret else f"{key.name}={given!r:.100}"
            errors.append(f"{shown} is not allowed: it must be {setting.kind.allowed}")
    hidden = setting is not None and setting.secret
    return ConfigValue(name=key.name, value=None if hidden else value, recommended_values=[], errors=errors)


def _text(value: str | float) -> str:
    """Return a value as Connect reads it: some tools send numbers and true or false as such."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    try:
        text.encode()
    except UnicodeEncodeError as cause:
        raise HTTPException(400, f"{text[:100]!r} is not valid text: it has an unpaired surrogate") from cause
    return text


async def _known(plugin: PluginName) -> None:
    """Let a plugin pass that exists, under its class or, as with Connect, under the short name of it."""
    if plugin not in _NAMES:
        raise HTTPException(404, f"Unknown plugin {plugin[:300]}.")


def plugin_routes(worker: Worker) -> APIRouter:
    """Return the routes about the one plugin."""
    router = APIRouter(tags=["connect"])
    validating = PaidThread(VALIDATIONS_AT_A_TIME)

    @router.get(
        "/connector-plugins",
        summary="List connector plugins",
        description="There is one: retry-sidecar.",
        response_model=list[Plugin],
        response_description="The plugins.",
        responses=example([PLUGIN_EXAMPLE]),
    )
    async def plugins() -> JSONResponse:
        plugin = Plugin.model_validate({"class": CONNECTOR_CLASS, "type": "sink", "version": worker.version})
        return JSONResponse([plugin.model_dump(by_alias=True)])

    @router.get(
        f"{PLUGIN}/config",
        summary="List the settings of a plugin",
        description="Each setting with its default. `MAX_DELAY` is called `max.delay` here.",
        response_model=list[ConfigKey],
        response_description="The settings.",
        responses={**_UNKNOWN_PLUGIN, **example([KEY_EXAMPLE])},
        dependencies=[Depends(_known)],
    )
    async def plugin_config() -> JSONResponse:
        return JSONResponse([each.model_dump() for each in definitions()])

    @router.put(
        f"{PLUGIN}/config/validate",
        summary="Validate a configuration",
        description="Changes nothing.",
        response_model=ConfigInfos,
        response_description="Each setting with its value and its errors.",
        responses={
            **_UNKNOWN_PLUGIN,
            400: {"model": ErrorBody, "description": "The configuration is for another connector class."},
        },
        dependencies=[Depends(_known), Depends(require_json)],
    )
    async def validate(given: Given) -> Response:
        config = {name: value if value is None else _text(value) for name, value in given.items()}
        kind = config.get("connector.class")
        if kind is not None and kind not in _NAMES:
            raise HTTPException(
                400, f"Included connector type {kind[:300]} does not match request type {CONNECTOR_CLASS}"
            )
        made = await validating.run(lambda: validated(config).model_dump_json().encode())
        return Response(made, media_type="application/json")

    return router
