"""Real pipelines: measure a PyTorch model's layers, run it in stages, compare with the simulation.

Everything here needs the extra `torch`; nothing else in pipesim does.
"""

from importlib.util import find_spec

if find_spec("torch") is None:
    raise ImportError("the runtime needs PyTorch: pip install 'pipesim[torch]'")

from pipesim.runtime.measured import MeasuredStep
from pipesim.runtime.processes import (
    TORCH_CLASSES,
    RealStep,
    WorkerError,
    measure_steps,
    real_step,
    sleeping_step,
    torch_order,
)
from pipesim.runtime.sleeping import SleepingStage
from pipesim.runtime.stage import PipelineStage, model_layers, split_model

__all__ = [
    "TORCH_CLASSES",
    "MeasuredStep",
    "PipelineStage",
    "RealStep",
    "SleepingStage",
    "WorkerError",
    "measure_steps",
    "model_layers",
    "real_step",
    "sleeping_step",
    "split_model",
    "torch_order",
]
