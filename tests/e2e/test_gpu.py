"""GPUs as the driver sees them. There is none here: a small library with the same symbols stands in for the driver's."""

from __future__ import annotations

import json
import pathlib
import subprocess

import pytest

from conftest import SCRIPTS, Home, Run, wait_for

TRAIN = [str(SCRIPTS / "tiny_layers.py"), "never", "100000000"]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The directory of a libnvidia-ml.so.1."""
    directory = tmp_path_factory.mktemp("driver")
    library = directory / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, SCRIPTS / "fake_nvml.c"], check=True)
    return directory


def asked_of(driver: pathlib.Path, home: Home) -> dict[str, str]:
    """The environment in which a command finds the driver, and the driver finds the file of the test."""
    return {"LD_LIBRARY_PATH": str(driver), "FAKE_NVML": str(home.directory / "nvml")}


@pytest.fixture
def run(home: Home, driver: pathlib.Path) -> Run:
    settings = asked_of(driver, home)
    return home.train("torchrun", "--nproc-per-node", "1", *TRAIN, PROBE_GPU_METRICS="100ms", **settings)


def test_gpus_are_read_every_so_often(home: Home, run: Run, driver: pathlib.Path) -> None:
    run.wait_for_step(1)
    wait_for("two GPUs", lambda: len(run.query("SELECT DISTINCT uuid FROM gpu.metrics")) == 2)
    columns = "gpu, uuid, name, role, rank, utilization, memory_used, memory_total, power, power_limit, temperature"
    columns += ", sm_clock, memory_clock, throttle_reasons, ecc_corrected, ecc_uncorrected, xid"
    first, second = run.query(f"SELECT DISTINCT {columns} FROM gpu.metrics WHERE ranks IS NULL ORDER BY gpu")
    assert first == {
        "gpu": 0, "uuid": "GPU-11", "name": "Fake H200", "role": "collector", "rank": None,
        "utilization": 40.0, "memory_used": 1000.0, "memory_total": 140000.0,
        "power": 412.5, "power_limit": None, "temperature": 61.0, "sm_clock": 1980.0, "memory_clock": 3201.0,
        "throttle_reasons": "idle", "ecc_corrected": 7, "ecc_uncorrected": None, "xid": None,
    }  # fmt: skip
    assert (second["uuid"], second["utilization"], second["throttle_reasons"]) == ("GPU-22", 80.0, "sw_power_cap")

    # Which process computes on which GPU, and errors of the GPU.
    (trainer,) = run.query("SELECT pid, rank FROM probe.agents")
    (home.directory / "nvml").write_text(f"{trainer['pid']} 79")
    wait_for("the error", lambda: run.query("SELECT 1 FROM gpu.metrics WHERE xid = 79 AND uuid = 'GPU-22'"))
    wait_for("the rank", lambda: run.query("SELECT 1 FROM gpu.metrics WHERE ranks = '0' AND uuid = 'GPU-22'"))
    settings = asked_of(driver, home)
    listed = json.loads(home.probe("list", "--format", "json", **settings).stdout)
    assert [row["gpu"] for row in listed if row["pid"] == trainer["pid"]] == ["1"]
    assert " gpu " in home.probe("list", **settings).stdout and " gpu " not in home.probe("list").stdout
    # It follows the row.
    events = "SELECT severity, message FROM probe.events WHERE kind = 'gpu'"
    (event,) = wait_for("the event", lambda: run.query(events))  # type: ignore[misc]
    assert event["severity"] == "error"
    assert event["message"].startswith("the driver reports Xid 79 of GPU 1 (Fake H200, GPU-22)"), event
    assert run.query("SELECT COUNT(*) AS n FROM gpu.metrics WHERE xid IS NOT NULL") == [{"n": 1}]


def test_gpus_that_nobody_can_see_are_not_read(home: Home, driver: pathlib.Path) -> None:
    settings = {"LD_LIBRARY_PATH": str(driver), "CUDA_VISIBLE_DEVICES": "1", "PROBE_GPU_METRICS": "100ms"}
    run = home.train("python", *TRAIN, **settings)
    run.wait_for_step(1)
    wait_for("a GPU", lambda: run.query("SELECT 1 FROM gpu.metrics LIMIT 1"))
    assert run.query("SELECT DISTINCT uuid FROM gpu.metrics") == [{"uuid": "GPU-22"}]
    # The rows stay when the run is over.
    home.close()
    assert home.query(run.name, "SELECT DISTINCT uuid FROM gpu.metrics") == [{"uuid": "GPU-22"}]


def test_without_a_driver_there_are_no_rows_and_no_complaints(home: Home) -> None:
    run = home.train("python", *TRAIN)
    run.wait_for_step(1)
    assert run.query("SELECT COUNT(*) AS n FROM gpu.metrics") == [{"n": 0}]
    assert run.query("SELECT * FROM probe.events") == []


def test_an_interval_that_is_none_is_refused(home: Home) -> None:
    for value, what in (("often", "is not a duration"), ("1ms", "is too often")):
        refused = home.probe("serve", "--name", "gpt", PROBE_GPU_METRICS=value)
        assert refused.returncode == 2, refused.stderr
        assert f"PROBE_GPU_METRICS={value} {what}" in refused.stderr and "hint: " in refused.stderr
