"""Running the blocks of a sweep: in this process, or on workers by joblib."""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import Any

from pipesim.base.checks import hint
from pipesim.studies.sweep.rows import Row, block_rows
from pipesim.studies.sweep.study import Point, Study

BACKENDS = ("loky", "dask", "ray")
Done = tuple[list[int], list[Row]]
ROUND = 4  # blocks a worker of Ray, before rows are handed back


def run_blocks(
    study: Study,
    points: Sequence[Point],
    blocks: Sequence[list[int]],
    jobs: int | None = None,
    backend: str = "loky",
    cluster: str | None = None,
) -> Generator[Done, None, None]:
    """Yield the point numbers and the rows of every block as soon as it is done, in any order.

    Parameters
    ----------
    study, points
        The study of the sweep, and its points.
    blocks
        Blocks of points, each a list of their numbers.
    jobs
        Number of workers; -1: one a core. By default 1 with loky, which is this process, and
        otherwise all that the cluster has.
    backend
        "loky", "dask" or "ray".
    cluster
        Address of a cluster of Dask or Ray; by default one is started on this machine.

    Raises
    ------
    ValueError
        If the backend is unknown or not installed, or has no clusters, or `jobs` is no count.
    """
    check_backend(jobs, backend, cluster)
    if backend == "loky" and (jobs in (None, 1) or len(blocks) < 2):
        for numbers in blocks:
            yield numbers, block_rows(study, [points[number] for number in numbers])
        return
    from joblib import Parallel, delayed, effective_n_jobs

    stopped = False

    def work() -> Iterator[Any]:
        """Yield a job for every block as workers ask for it, until the sweep is stopped."""
        for numbers in blocks:
            if stopped:
                return
            yield delayed(_run_block)(study, numbers, [points[number] for number in numbers])

    count = jobs or -1
    with CLUSTERS[backend](jobs, cluster):
        if backend == "ray":  # it hands back all rows of a call at once
            step = ROUND * effective_n_jobs(count)
            waiting = list(work())
            with Parallel(n_jobs=count, batch_size=1) as workers:
                for first in range(0, len(waiting), step):
                    yield from workers(waiting[first : first + step])
            return
        found = Parallel(n_jobs=count, batch_size=1, return_as="generator_unordered")(work())
        try:
            for done in found:  # noqa: UP028  # joblib would be closed with a warning
                yield done
        finally:
            # The few blocks under way end first: to kill workers while more are handed out may
            # fail in a thread of joblib's own. Those that Ctrl-C has reached, too, end at once.
            stopped = True
            with suppress(Exception):
                for _ in found:
                    pass


def check_backend(jobs: int | None, backend: str, cluster: str | None) -> None:
    """Check the backend of a sweep, its number of workers and its cluster.

    Raises
    ------
    ValueError
        If the backend is unknown or not installed, or has no clusters, or `jobs` is no count.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend {backend!r} is unknown; {hint(backend, BACKENDS)}")
    if jobs is not None and (jobs != int(jobs) or (jobs < 1 and jobs != -1)):
        raise ValueError(f"jobs = {jobs} is neither a count nor -1, one a core")
    if cluster is not None and backend == "loky":
        raise ValueError("a cluster needs a backend that has one: dask or ray")
    needed = {"dask": "distributed", "ray": "ray"}.get(backend)
    if needed is not None and find_spec(needed) is None:
        raise ValueError(f"backend {backend!r} is not installed; pip install 'pipesim[{backend}]'")


def _run_block(study: Study, numbers: list[int], points: list[Point]) -> Done:
    return numbers, block_rows(study, points)


@contextmanager
def _loky(jobs: int | None, cluster: str | None) -> Iterator[None]:
    from joblib import parallel_config

    # A worker's numerical libraries keep to one thread: the workers fill the cores.
    with parallel_config(backend="loky", inner_max_num_threads=1):
        yield


@contextmanager
def _dask(jobs: int | None, cluster: str | None) -> Iterator[None]:
    from distributed import Client, LocalCluster
    from joblib import parallel_config

    count = None if jobs in (None, -1) else jobs
    if cluster is not None:
        with Client(cluster) as client, parallel_config(backend="dask", client=client):
            yield
        return
    with (
        LocalCluster(n_workers=count, threads_per_worker=1, dashboard_address=None) as local,
        Client(local) as client,
        parallel_config(backend="dask", client=client),
    ):
        yield


@contextmanager
def _ray(jobs: int | None, cluster: str | None) -> Iterator[None]:
    import ray
    from joblib import parallel_config
    from ray.util.joblib import register_ray

    own = not ray.is_initialized()
    if own:
        count = None if cluster is not None or jobs in (None, -1) else jobs
        ray.init(
            address=cluster or "local",
            num_cpus=count,
            include_dashboard=None if cluster else False,
            log_to_driver=False,
        )
    register_ray()
    try:
        with parallel_config(backend="ray"):
            yield
    finally:
        if own:
            ray.shutdown()


CLUSTERS: dict[str, Callable[[int | None, str | None], Any]] = {
    "loky": _loky,
    "dask": _dask,
    "ray": _ray,
}
