"""Choose which `tllm set` settings to keep when a model is imported again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trtllm_serve_cli.engine_kinds.serving import ServingOptions
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.repository.model.instances import list_implied
from trtllm_serve_cli.repository.model.parameters import (
    check_parameters,
    list_unused,
    load_parameters,
)
from trtllm_serve_cli.repository.model.store import ImportedModel
from trtllm_serve_cli.repository.planning.repository_plan import list_requested


@dataclass(frozen=True, slots=True)
class PreservedSettings:
    """The settings that an import keeps or drops, by parameter name.

    `problem` is why the settings cannot be read, or "". In this case, the import drops them.
    """

    kept: Mapping[str, str] = field(default_factory=dict)
    dropped: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""

    def describe(self) -> list[str]:
        """Return one line for the kept settings and one for the dropped settings.

        Omit lines without settings. If there is a problem, return one line that contains it.
        """
        if self.problem:
            return [f"Dropped the settings of `tllm set`, because {self.problem}"]
        return [
            f"{what}: {'; '.join(f'{name}={value}' for name, value in parameters.items())}"
            for what, parameters in (
                ("Kept settings", self.kept),
                ("Dropped settings that do not apply to this import", self.dropped),
            )
            if parameters
        ]


def choose_preserved(
    existing: ImportedModel, options: ServingOptions, kind: str
) -> PreservedSettings:
    """Choose the settings of `existing` that an import keeps.

    A setting is kept if it is valid for the new engine kind. All settings are dropped if the layout
    has changed. Draft model settings are dropped if the new import has no draft model. Parameters
    that the new import sets are neither kept nor dropped.
    """
    requested = list_implied(list_requested(options))
    rest = {name: value for name, value in existing.preserved.items() if name not in requested}
    if options.layout != existing.layout:
        return PreservedSettings(dropped=rest)
    is_same = existing.engine_kind == kind
    kept = {name: value for name, value in rest.items() if _fits(name, value, kind, is_same)}
    if "draft_engine_dir" not in {*kept, *options.parameters}:
        table = load_parameters()
        kept = {name: kept[name] for name in kept if not table[name].is_of_draft_model}
    return PreservedSettings(
        kept, {name: value for name, value in rest.items() if name not in kept}
    )


def _fits(name: str, value: str, kind: str, is_same_kind: bool) -> bool:
    """Return whether the setting is valid for the engine kind.

    If the kind has changed, the setting must also have an effect on the new kind.
    """
    try:
        check_parameters({name: value}, kind)
    except BadInput:
        return False
    return is_same_kind or not list_unused([name], kind)
