"""A Triton model's own config, as its Python code sees it in `initialize`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any


class Parameters:
    """The `parameters` of a `config.pbtxt`, typed by whoever asks."""

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
        policy = config.get("model_transaction_policy", {})
        self.is_decoupled = bool(policy.get("decoupled", False))
        batching = config.get("dynamic_batching", {})
        queue = batching.get("default_queue_policy", {})
        # Triton's own JSON has 64-bit numbers as text.
        self.max_queue_size = int(queue.get("max_queue_size", 0))
        self.has_queue_policy = any(
            int(number)
            for number in (
                batching.get("priority_levels", 0),
                queue.get("default_timeout_microseconds", 0),
            )
        )
        self._values: dict[str, str] = {
            key: value["string_value"] for key, value in config.get("parameters", {}).items()
        }
        self._read_names: set[str] = set()

    @property
    def shares_engine(self) -> bool:
        """Whether this model's instances are front ends of one engine worker, the first one's."""
        return self.flag("instances_share_engine", False) and self.num_instances > 1

    @property
    def num_engines(self) -> int:
        """How many engine workers the model has."""
        return 1 if self.shares_engine else self.num_instances

    @property
    def has_engine(self) -> bool:
        """Whether this instance has an engine worker of its own."""
        return not self.shares_engine or self._index == 0

    @property
    def _index(self) -> int:
        """The number of this instance among the model's."""
        last = re.search("[0-9]+$", self.instance_name)
        return int(last[0]) if last else 0

    def add(self, values: Mapping[str, str]) -> None:
        """Take `values` from elsewhere; they win over those of `config.pbtxt`."""
        self._values.update(values)

    def find_unread(self, names: Iterable[str]) -> list[str]:
        """Of `names`, those that nothing has wanted to know yet."""
        return sorted(set(names) - self._read_names)

    @property
    def gpus(self) -> list[str]:
        """The GPUs of this instance as `gpu_device_ids` says; none when it leaves that open."""
        groups = self.text("gpu_device_ids", "").split(";")
        index = self._index if len(groups) > 1 else 0
        if index >= len(groups):
            raise ValueError(
                f"config.pbtxt of {self.model_name}: gpu_device_ids is for {len(groups)} "
                f"instances, and {self.instance_name} is one more"
            )
        return [number.strip() for number in groups[index].split(",") if number.strip()]

    def text(self, name: str, default: str | None = None) -> str:
        """The value; an unfilled `${name}` of a template counts as not set, as upstream has it."""
        self._read_names.add(name)
        value = self._values.get(name, "")
        if value and not value.startswith("${"):
            return value
        if default is None:
            raise ValueError(f"config.pbtxt of {self.model_name} has no parameter {name}")
        return default

    def number(self, name: str, default: int | None = None) -> int:
        text = self.text(name, None if default is None else str(default))
        try:
            return int(text)
        except ValueError as error:
            raise ValueError(
                f"config.pbtxt of {self.model_name}: {name} is {text!r}, not a whole number"
            ) from error

    def flag(self, name: str, default: bool) -> bool:
        text = self.text(name, str(default)).lower()
        if text not in ("0", "1", "false", "true"):
            raise ValueError(
                f"config.pbtxt of {self.model_name}: {name} is {text!r}, not true or false"
            )
        return text in ("1", "true")
