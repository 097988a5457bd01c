"""TLS certificates, made with the system's openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path


def certify(folder: Path, name: str, *options: str) -> tuple[Path, Path]:
    """Create a self-signed certificate and its key."""
    certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
    subprocess.run(
        ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-days", "2", "-subj", f"/CN={name}", "-keyout", key, "-out", certificate,
         *options),
        check=True, capture_output=True,
    )  # fmt: skip
    return certificate, key
