"""The same study gives the same rows wherever it is run."""

import json
import sys
from pathlib import Path

import pandas as pd
import pytest

import pipesim as ps
from pipesim.cli import main
from pipesim.studies.sweep import backends


@pytest.fixture
def study(tmp_path):
    """A study of several structures, with points that fail."""
    axes = {
        "run.schedule": ["gpipe", "1f1b", "zb_auto"],
        "run.microbatches": [2, 0, 5],
        "stages.forward_ms": {"normal": [1, 0.8], "draws": 6, "seed": 2, "size": 3},
    }
    document = {
        "run": {"schedule": "1f1b", "microbatches": 4},
        "stages": {"forward_ms": 1, "input_grad_ms": 1, "weight_grad_ms": 1, "count": 3},
        "sweep": {"axes": axes},
    }
    path = tmp_path / "s.json"
    path.write_text(json.dumps(document))
    return path


def check(study, **how):
    here = ps.sweep_config(study)
    assert 18 < here.error.notna().sum() < 54
    there = ps.sweep_config(study, **how)
    pd.testing.assert_frame_equal(there, here, check_exact=True)


def test_processes_on_this_machine(study):
    check(study, jobs=2)


def test_an_interrupt_stops_the_workers(study, tmp_path):
    def stop(done, total):
        raise KeyboardInterrupt

    file = tmp_path / "t.csv"
    with pytest.raises(KeyboardInterrupt):
        ps.sweep_config(study, progress=stop, jobs=2, file=file)
    table = ps.sweep_config(study, jobs=2, file=file, resume=True)
    pd.testing.assert_frame_equal(table, ps.sweep_config(study))


def test_little_work_starts_no_processes(study, monkeypatch):
    monkeypatch.setitem(sys.modules, "joblib", None)
    axes = {"sweep.axes": {"stages.count": [3]}}
    assert len(ps.sweep_config(study, axes, jobs=2)) == 1


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"backend": "slurm"}, "backend 'slurm' is unknown; known: loky, dask, ray"),
        ({"jobs": 0}, "jobs = 0 is neither"),
        ({"jobs": -2}, "jobs = -2 is neither"),
        ({"cluster": "tcp://1.2.3.4:5"}, "a cluster needs a backend that has one"),
    ],
)
def test_where_a_sweep_cannot_run(study, how, message):
    with pytest.raises(ValueError, match=message):
        ps.sweep_config(study, **how)


@pytest.mark.parametrize("backend", ["dask", "ray"])
def test_a_backend_that_is_not_installed(study, capsys, monkeypatch, backend):
    monkeypatch.setattr(backends, "find_spec", lambda name: None)
    assert main(["sweep", str(study), "--backend", backend]) == 2
    assert f"pip install 'pipesim[{backend}]'" in capsys.readouterr().err


@pytest.mark.distributed
@pytest.mark.filterwarnings("ignore")  # of the cluster's own
def test_a_dask_cluster(study):
    distributed = pytest.importorskip("distributed", reason="pip install 'pipesim[dask]'")
    check(study, backend="dask", jobs=2)
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None
    ) as cluster:
        check(study, backend="dask", cluster=cluster.scheduler_address)


@pytest.mark.distributed
@pytest.mark.filterwarnings("ignore")
def test_a_ray_cluster(study, monkeypatch):
    ray = pytest.importorskip("ray", reason="pip install 'pipesim[ray]'")
    # Its workers start elsewhere, and find this checkout as an installed package would be.
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    check(study, backend="ray", jobs=2)
    context = ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        assert context.address_info["gcs_address"]
        check(study, backend="ray")
    finally:
        ray.shutdown()
