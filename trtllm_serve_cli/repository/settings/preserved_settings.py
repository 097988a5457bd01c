"""What `tllm set` changed in a repository, and what of it stays when an import renders it anew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trtllm_serve_cli.engine_kinds.serving import ServingOptions
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.repository.model.instances import list_implied
from trtllm_serve_cli.repository.model.parameters import check_parameters, list_unused
from trtllm_serve_cli.repository.model.store import ImportedModel
from trtllm_serve_cli.repository.planning.repository_plan import list_requested


@dataclass(frozen=True, slots=True)
class PreservedSettings:
    """Parameters by name: those that stay as they were set, and those that do not."""

    kept: Mapping[str, str] = field(default_factory=dict)
    dropped: Mapping[str, str] = field(default_factory=dict)

    def describe(self) -> list[str]:
        """A line of each kind that there is."""
        return [
            f"{what}: {'; '.join(f'{name}={value}' for name, value in parameters.items())}"
            for what, parameters in (
                ("Kept what was set", self.kept),
                ("Dropped what was set for another source, layout or engine kind", self.dropped),
            )
            if parameters
        ]


def choose_preserved(
    existing: ImportedModel, options: ServingOptions, kind: str
) -> PreservedSettings:
    """What is kept under what the import's options say, as far as it fits layout and engine kind.

    What they say themselves is neither kept nor dropped.
    """
    requested = list_implied(list_requested(options))
    rest = {name: value for name, value in existing.preserved.items() if name not in requested}
    # Only this layout has a place for what is set.
    if options.layout != "inflight":
        return PreservedSettings(dropped=rest)
    is_same = existing.engine_kind == kind
    kept = {name: value for name, value in rest.items() if _fits(name, value, kind, is_same)}
    return PreservedSettings(
        kept, {name: value for name, value in rest.items() if name not in kept}
    )


def _fits(name: str, value: str, kind: str, is_same_kind: bool) -> bool:
    """Whether it has an effect, or had none where it was set either."""
    try:
        check_parameters({name: value}, kind)
    except BadInput:
        return False
    return is_same_kind or not list_unused([name], kind)
