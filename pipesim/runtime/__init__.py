"""Real pipelines: measure a PyTorch model's layers, run it in stages, compare with the simulation.

Everything here needs the extra `torch`; nothing else in pipesim does.
"""

from importlib.util import find_spec

if find_spec("torch") is None:
    raise ImportError("the runtime needs PyTorch: pip install 'pipesim[torch]'")

from pipesim.runtime.profiling import profile_layers
from pipesim.runtime.stage import PipelineStage, model_layers, split_model

__all__ = ["PipelineStage", "model_layers", "profile_layers", "split_model"]
