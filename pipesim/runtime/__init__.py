"""Real pipelines: measure a PyTorch model's layers, run it in stages, compare with the simulation.

Everything here needs the extra `torch`; nothing else in pipesim does. An example opens
`step/real_pipeline.py`: a step of eight layers in four stages, and the run that it gives.
"""

from importlib.util import find_spec

if find_spec("torch") is None or find_spec("safetensors") is None:
    raise ImportError("the runtime needs PyTorch and safetensors: pip install 'pipesim[torch]'")

from pipesim.runtime.model.stage import PipelineStage, model_layers, split_model
from pipesim.runtime.processes.measured_step import MeasuredStep
from pipesim.runtime.processes.processes import WorkerError, measure_steps
from pipesim.runtime.processes.sleeping import SleepingStage
from pipesim.runtime.processes.torch_steps import (
    TORCH_CLASSES,
    RealStep,
    real_step,
    sleeping_step,
    torch_order,
)
from pipesim.runtime.profile.profiling import profile_layers
from pipesim.runtime.shards.shards import load_stages, save_stages
from pipesim.runtime.step.real_pipeline import RealPipeline as Pipeline
from pipesim.runtime.step.step_result import StepResult

__all__ = [
    "TORCH_CLASSES",
    "MeasuredStep",
    "Pipeline",
    "PipelineStage",
    "RealStep",
    "SleepingStage",
    "StepResult",
    "WorkerError",
    "load_stages",
    "measure_steps",
    "model_layers",
    "profile_layers",
    "real_step",
    "save_stages",
    "sleeping_step",
    "split_model",
    "torch_order",
]
