"""Real pipelines: measure a PyTorch model's layers, run it in stages, compare with the simulation.

Everything here needs the extra `torch`; nothing else in pipesim does.
"""

from importlib.util import find_spec

if find_spec("torch") is None or find_spec("safetensors") is None:
    raise ImportError("the runtime needs PyTorch and safetensors: pip install 'pipesim[torch]'")

from pipesim.runtime.pipeline import Pipeline, StepResult
from pipesim.runtime.profiling import profile_layers
from pipesim.runtime.shards import load_stages, save_stages
from pipesim.runtime.stage import PipelineStage, model_layers, split_model

__all__ = [
    "Pipeline",
    "PipelineStage",
    "StepResult",
    "load_stages",
    "model_layers",
    "profile_layers",
    "save_stages",
    "split_model",
]
