"""Bodies of Triton's inference requests and responses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

SIZE_HEADER = "inference-header-content-length"


@dataclass(frozen=True, slots=True)
class InferenceBody:
    """A JSON document and the binary tensors that follow it.

    `tensors` is None if the whole body is JSON.
    """

    json: bytes
    tensors: bytes | None = None

    @classmethod
    def of(cls, data: bytes, json_size: str | None) -> InferenceBody:
        """Split a body. `json_size` is the value of the header `SIZE_HEADER`, if there is one.

        Raise `ValueError` if `json_size` is not a number of bytes of the body.
        """
        if json_size is None:
            return cls(data)
        if not json_size.isdecimal() or int(json_size) > len(data):
            raise ValueError(f"the body does not have {json_size} bytes of JSON")
        return cls(data[: int(json_size)], data[int(json_size) :])

    @property
    def data(self) -> bytes:
        """The complete body."""
        return self.json + (self.tensors or b"")

    @property
    def headers(self) -> Mapping[str, str]:
        """The header that describes the parts of the body, if it has binary tensors."""
        return {} if self.tensors is None else {SIZE_HEADER: str(len(self.json))}

    def with_json(self, json: bytes) -> InferenceBody:
        """Return the body with another JSON document and the same tensors."""
        return replace(self, json=json)
