"""The Dagster component: the definitions of a deployment from a `defs.yaml`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import dagster as dg
from pydantic import BaseModel, SkipValidation, create_model

from backfill_assets.definitions import build_defs
from backfill_assets.settings import Settings, load_settings


@dataclass
class BackfillAssets(dg.Component):
    """The assets, checks, jobs, schedules and sensors of a deployment.

    The attributes in `defs.yaml` are settings, named as the fields of `Settings`. They win over the
    environment; what they leave out comes from there. A value may be a template such as
    `{{ env.LANDING }}`.

    Attributes:
        settings: the deployment's settings.
    """

    settings: Settings

    @classmethod
    def get_model_cls(cls) -> type[BaseModel]:
        """The model of the attributes, for Dagster and for editors of `defs.yaml`."""
        return _ATTRIBUTES

    @classmethod
    def load(cls, attributes: BaseModel | None, context: dg.ComponentLoadContext) -> BackfillAssets:
        """The component of a `defs.yaml`.

        Raises:
            SettingsError: naming each attribute or variable with a bad value, and what is allowed.
        """
        rendered = _render_templates(
            dict(attributes or {}), context.resolution_context.at_path("attributes")
        )
        # An empty attribute counts as unset, as an empty variable does.
        overrides = {name: value for name, value in rendered.items() if value not in (None, "")}
        return cls(load_settings(**overrides))

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """The definitions with these settings."""
        return build_defs(self.settings)


#: The fields of `Settings`, as attributes. Dagster does not validate their values: they may be
#: templates, and `Settings` reports each error in one sentence.
_FIELDS: dict[str, Any] = {
    name: (Annotated[field.rebuild_annotation(), SkipValidation()], None)
    for name, field in Settings.model_fields.items()
}
_ATTRIBUTES = create_model("BackfillAssetsAttributes", __base__=dg.Model, **_FIELDS)


def _render_templates(value: Any, context: dg.ResolutionContext) -> Any:
    """Render templates in a value, and leave other text as text.

    Dagster would turn any text that looks like a number into a number, such as a Spark setting's
    value.
    """
    if isinstance(value, dict):
        return {
            name: _render_templates(inner, context.at_path(name)) for name, inner in value.items()
        }
    return context.resolve_value(value) if isinstance(value, str) and "{{" in value else value
