"""pipesim: pipeline-parallel training with unequal stages, simulated op by op.

>>> import pipesim as ps
>>> pipe = ps.Pipeline.from_costs(forward=[1, 1, 1, 2], backward=[2, 2, 2, 4])
>>> ps.simulate(pipe, "1f1b", microbatches=8)
Run(1f1b, ranks=4, microbatches=8, makespan=57 ms, bubble=47.4%)

Public names are bound when they are first used (PEP 562), so that `import pipesim` is quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipesim import plot
    from pipesim.base.errors import (
        ConfigError,
        DeadlockError,
        MemoryLimitError,
        PipesimError,
        ScheduleError,
        UnsupportedByEngine,
    )
    from pipesim.base.ops import Kind, Op, parse_op
    from pipesim.config.read import read_config
    from pipesim.config.simulate import simulate_config, simulate_step_config
    from pipesim.engine.graph.deadlock import check_deadlock
    from pipesim.files.layer_csv import read_layers, write_layers
    from pipesim.files.schedule_csv.read import read_schedule
    from pipesim.files.schedule_csv.write import write_schedule
    from pipesim.files.traces.chrome import read_chrome_trace
    from pipesim.pipeline.batch_sizes import BatchSizes, batch_sizes
    from pipesim.pipeline.components import Device, Stage
    from pipesim.pipeline.layers import LayerProfile
    from pipesim.pipeline.links import Link
    from pipesim.pipeline.partition.partition import min_max_split, partition
    from pipesim.pipeline.pipeline import Pipeline
    from pipesim.pipeline.placement import (
        Placement,
        bidirectional_placement,
        linear_placement,
        looped_placement,
        v_placement,
        wave_placement,
    )
    from pipesim.pipeline.training import Training
    from pipesim.pipeline.transformer import Transformer
    from pipesim.pipeline.variants import CostVariants
    from pipesim.report.trace_file import write_trace
    from pipesim.run.many import simulate_many
    from pipesim.run.run import Run
    from pipesim.run.simulate import simulate
    from pipesim.run.step import Step, simulate_step
    from pipesim.schedules.families.policies import (
        Policy,
        backward_first,
        oldest_first,
        zero_bubble_greedy,
    )
    from pipesim.schedules.families.registry import (
        build_schedule,
        closed_forms,
        schedule_names,
    )
    from pipesim.schedules.order.schedule import Schedule
    from pipesim.schedules.program.lowering import lower
    from pipesim.schedules.program.program import Program
    from pipesim.schedules.slot_table import bubble_formula, bubble_fraction, gpipe_forward_schedule
    from pipesim.studies.compare import compare
    from pipesim.studies.fits.overhead import MeasuredRun, OverheadFit, fit_overhead
    from pipesim.studies.fits.step_times import StepTimeFit, fit_step_times
    from pipesim.studies.ladder import ladder
    from pipesim.studies.splits.candidates import BestSplit
    from pipesim.studies.splits.compare import compare_splits
    from pipesim.studies.splits.exhaustive import best_split
    from pipesim.studies.splits.refinement import refine_split
    from pipesim.studies.sweep.sweep import sweep_config, sweep_runs

_HOMES = {
    "BatchSizes": "pipeline.batch_sizes",
    "BestSplit": "studies.splits.candidates",
    "ConfigError": "base.errors",
    "CostVariants": "pipeline.variants",
    "DeadlockError": "base.errors",
    "Device": "pipeline.components",
    "Kind": "base.ops",
    "LayerProfile": "pipeline.layers",
    "Link": "pipeline.links",
    "MeasuredRun": "studies.fits.overhead",
    "MemoryLimitError": "base.errors",
    "Op": "base.ops",
    "Pipeline": "pipeline.pipeline",
    "OverheadFit": "studies.fits.overhead",
    "PipesimError": "base.errors",
    "Placement": "pipeline.placement",
    "Program": "schedules.program.program",
    "Policy": "schedules.families.policies",
    "Run": "run.run",
    "Schedule": "schedules.order.schedule",
    "ScheduleError": "base.errors",
    "Stage": "pipeline.components",
    "Step": "run.step",
    "StepTimeFit": "studies.fits.step_times",
    "Training": "pipeline.training",
    "Transformer": "pipeline.transformer",
    "UnsupportedByEngine": "base.errors",
    "backward_first": "schedules.families.policies",
    "batch_sizes": "pipeline.batch_sizes",
    "best_split": "studies.splits.exhaustive",
    "bidirectional_placement": "pipeline.placement",
    "bubble_formula": "schedules.slot_table",
    "bubble_fraction": "schedules.slot_table",
    "check_deadlock": "engine.graph.deadlock",
    "build_schedule": "schedules.families.registry",
    "closed_forms": "schedules.families.registry",
    "compare": "studies.compare",
    "compare_splits": "studies.splits.compare",
    "fit_overhead": "studies.fits.overhead",
    "fit_step_times": "studies.fits.step_times",
    "gpipe_forward_schedule": "schedules.slot_table",
    "ladder": "studies.ladder",
    "linear_placement": "pipeline.placement",
    "looped_placement": "pipeline.placement",
    "lower": "schedules.program.lowering",
    "min_max_split": "pipeline.partition.partition",
    "oldest_first": "schedules.families.policies",
    "parse_op": "base.ops",
    "partition": "pipeline.partition.partition",
    "read_chrome_trace": "files.traces.chrome",
    "read_config": "config.read",
    "read_layers": "files.layer_csv",
    "read_schedule": "files.schedule_csv.read",
    "refine_split": "studies.splits.refinement",
    "schedule_names": "schedules.families.registry",
    "simulate": "run.simulate",
    "simulate_config": "config.simulate",
    "simulate_step_config": "config.simulate",
    "simulate_many": "run.many",
    "simulate_step": "run.step",
    "sweep_config": "studies.sweep.sweep",
    "sweep_runs": "studies.sweep.sweep",
    "v_placement": "pipeline.placement",
    "wave_placement": "pipeline.placement",
    "write_layers": "files.layer_csv",
    "write_schedule": "files.schedule_csv.write",
    "write_trace": "report.trace_file",
    "zero_bubble_greedy": "schedules.families.policies",
}

__all__ = [*_HOMES, "plot"]


def __getattr__(name: str) -> Any:
    if name == "plot":
        return import_module("pipesim.plot")
    if name == "__version__":
        return import_module("importlib.metadata").version("pipesim")
    if name in _HOMES:
        value = getattr(import_module(f"pipesim.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'pipesim' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
