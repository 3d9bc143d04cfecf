"""The jobs of each rank in real steps, pickled for its process."""

import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipesim.files.schedule_csv.write import write_schedule
from pipesim.runtime.processes.torch_steps import RealStep
from pipesim.runtime.processes.worker import RankJob


def pickled_jobs(steps: Sequence[RealStep], ranks: int, folder: Path) -> list[bytes]:
    """Return the pickled jobs of each rank; plain pickle, which shares no memory of tensors.

    Parameters
    ----------
    steps
        Steps on this number of ranks.
    folder
        Folder to write the orders into, for the processes to read.

    Raises
    ------
    ValueError
        If a module, a loss or a batch cannot be pickled; with all that cannot.
    """
    jobs: list[list[RankJob]] = [[] for _ in range(ranks)]
    for number, step in enumerate(steps):
        path = folder / f"{number}.csv"
        write_schedule(step.order, path)
        for rank, of_rank in enumerate(jobs):
            held = [s for s, owner in enumerate(step.order.placement.rank_of) if owner == rank]
            of_rank.append(
                RankJob(
                    {stage: step.stages[stage] for stage in held},
                    step.order.stages,
                    step.order.microbatches,
                    step.torch_class,
                    str(path),
                    step.inputs,
                    step.targets,
                    step.loss_fn,
                )
            )
    try:
        return [pickle.dumps(of_rank) for of_rank in jobs]
    except Exception as error:  # pickle raises of any class
        faults = "\n".join(_faults(steps))
        raise ValueError(
            f"{faults}\nProcesses import classes and functions by their names: put them at the top "
            "level of a module, and take no lambda"
        ) from error


def _faults(steps: Sequence[RealStep]) -> Iterator[str]:
    for number, step in enumerate(steps):
        stages = {f"stage {s} ({type(x).__name__})": x for s, x in enumerate(step.stages)}
        batch = {"inputs": step.inputs, "targets": step.targets, "loss_fn": step.loss_fn}
        for name, part in (stages | batch).items():
            try:
                pickle.dumps(part)
            except Exception as error:
                yield f"step {number} ({step.order.name}): {name} cannot be pickled: {error}"
