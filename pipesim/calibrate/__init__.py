"""Fits: from measured runs to what their costs leave out."""

from pipesim.calibrate.overhead import MeasuredRun, OverheadFit, fit_overhead
from pipesim.calibrate.step_times import StepTimeFit, fit_step_times

__all__ = ["MeasuredRun", "OverheadFit", "StepTimeFit", "fit_overhead", "fit_step_times"]
