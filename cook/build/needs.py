"""What a step takes of a machine while it runs, so that those side by side fit into it together."""

from __future__ import annotations

from typing import Any

from cook.build.reckon import effort_of, model_bytes
from cook.engines.base import ModelArgs
from cook.graph.step import Needs, Step
from cook.steps.deal import DealStep
from cook.steps.live import LiveStep

_MODELS = ("model", "target", "draft")
_DEVICE_FLAGS = frozenset({"-ngl", "--gpu-layers", "--n-gpu-layers", "-dev", "--device", "--rpc"})


def needs_of(step: Step[Any]) -> Needs:
    """Memory for the models that ``step`` loads, and whether any of it goes to a device."""
    return Needs(_model_bytes(step), _on_device(step))


def _model_bytes(step: Step[Any]) -> int:
    """Bytes of models in memory: only live servers have several at once; what else loads two does
    so in turn; a worker's may be there from an earlier step."""
    effort = effort_of(step)
    if effort is None:
        return 0
    if isinstance(step, LiveStep | DealStep):
        return round(sum(effort.models))
    kept = (node for name, node in step.inputs().items() if name in _MODELS and step.in_worker)
    loaded = (*effort.models, *(model_bytes(node) or 0.0 for node in kept))
    return round(max(loaded, default=0))


def _on_device(step: Step[Any]) -> bool:
    """Whether any arguments of the step's models name a device, or layers for one."""
    if isinstance(step, DealStep):
        return any(_on_device(server) for server in step.servers)
    return any(
        bool(value.n_gpu_layers or value.devices or value.rpc)
        if isinstance(value, ModelArgs)
        else isinstance(value, tuple) and any(word in _DEVICE_FLAGS for word in value)
        for value in vars(step).values()
    )
