"""Read the model configuration that Triton passes to `initialize`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any


def has_queue_policy(config: Mapping[str, Any]) -> bool:
    """Return whether Triton's queue for the model in `config` has priorities or timeouts."""
    batching = config.get("dynamic_batching", {})
    queue = batching.get("default_queue_policy", {})
    numbers = (
        batching.get("priority_levels", 0),
        queue.get("default_timeout_microseconds", 0),
    )
    # Convert numbers explicitly, because Triton's JSON encodes 64-bit numbers as strings.
    return any(int(number) for number in numbers)


class Parameters:
    """The settings of a model instance from its `config.pbtxt`.

    The `text`, `number` and `flag` methods return values from the `parameters` section.
    """

    def __init__(self, args: Mapping[str, str]) -> None:
        config: dict[str, Any] = json.loads(args["model_config"])
        self.model_name = args["model_name"]
        self.model_version = args["model_version"]
        self.instance_name = args.get("model_instance_name", "")
        self.num_instances = sum(
            int(group.get("count", 1)) * max(len(group.get("gpus", ())), 1)
            for group in config.get("instance_group", ())
        )
        self.input_names = tuple(each["name"] for each in config.get("input", ()))
        self.output_names = tuple(each["name"] for each in config.get("output", ()))
        policy = config.get("model_transaction_policy", {})
        self.is_decoupled = bool(policy.get("decoupled", False))
        queue = config.get("dynamic_batching", {}).get("default_queue_policy", {})
        # Triton's JSON encodes 64-bit numbers as strings.
        self.max_queue_size = int(queue.get("max_queue_size", 0))
        self.has_queue_policy = has_queue_policy(config)
        self._values: dict[str, str] = {
            key: value["string_value"] for key, value in config.get("parameters", {}).items()
        }
        self._read_names: set[str] = set()

    @property
    def shares_engine(self) -> bool:
        """True if the model has several instances that share the first one's engine worker."""
        return self.flag("instances_share_engine", False) and self.num_instances > 1

    @property
    def num_engines(self) -> int:
        """The number of engine workers that the model starts."""
        return 1 if self.shares_engine else self.num_instances

    @property
    def has_engine(self) -> bool:
        """True if this instance starts an engine worker."""
        return not self.shares_engine or self.instance == 0

    @property
    def instance(self) -> int:
        """The index of this instance among the model's instances."""
        last = re.search("[0-9]+$", self.instance_name)
        return int(last[0]) if last else 0

    def add(self, values: Mapping[str, str]) -> None:
        """Add `values`, which override the parameters in `config.pbtxt`."""
        self._values.update(values)

    def find_unread(self, names: Iterable[str]) -> list[str]:
        """Return the parameters in `names` that have not been read."""
        return sorted(set(names) - self._read_names)

    @property
    def gpus(self) -> list[str]:
        """The GPUs that `gpu_device_ids` assigns to this instance.

        The list is empty if `gpu_device_ids` is not set. Raise `ValueError` if `gpu_device_ids`
        lists GPUs for several instances but not for this one.
        """
        groups = self.text("gpu_device_ids", "").split(";")
        index = self.instance if len(groups) > 1 else 0
        if index >= len(groups):
            raise ValueError(
                f"gpu_device_ids in the config.pbtxt of {self.model_name} lists GPUs for only "
                f"{len(groups)} instances; add the GPUs for {self.instance_name}"
            )
        return [number.strip() for number in groups[index].split(",") if number.strip()]

    def text(self, name: str, default: str | None = None) -> str:
        """Return the value of a parameter, or `default` if the parameter is unset.

        As in NVIDIA's models, a template placeholder `${name}` counts as unset. Raise `ValueError`
        if the parameter is unset and `default` is None.
        """
        self._read_names.add(name)
        value = self._values.get(name, "")
        if value and not value.startswith("${"):
            return value
        if default is None:
            raise ValueError(
                f"the config.pbtxt of {self.model_name} does not set {name}; add the parameter"
            )
        return default

    def number(self, name: str, default: int | None = None, *, at_least: int | None = None) -> int:
        text = self.text(name, None if default is None else str(default))
        try:
            number = int(text)
        except ValueError as error:
            raise ValueError(
                f"{name} in the config.pbtxt of {self.model_name} must be a whole number, but is "
                f"{text!r}"
            ) from error
        if at_least is not None and number < at_least:
            raise ValueError(
                f"{name} in the config.pbtxt of {self.model_name} must be at least {at_least}, but "
                f"is {number}"
            )
        return number

    def flag(self, name: str, default: bool) -> bool:
        text = self.text(name, str(default)).lower()
        if text not in ("0", "1", "false", "true"):
            raise ValueError(
                f"{name} in the config.pbtxt of {self.model_name} must be true or false, but is "
                f"{text!r}"
            )
        return text in ("1", "true")


def parse_scalar(text: str) -> Any:
    """Return a parameter as a boolean or a non-negative integer if possible, otherwise as text.

    Integers with leading zeros or more than 18 digits stay text.
    """
    return json.loads(text) if re.fullmatch(r"true|false|0|[1-9][0-9]{0,17}", text) else text
