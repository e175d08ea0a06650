"""numba-cuda's own kernel tests pass on the CPU executor, but for those that are named."""

import csv
import importlib.util
from pathlib import Path

import pytest
from cpu_executor import numba_suite

QUICK = ["test_iterators", "test_matmul", "test_sync", "test_warp_ops"]


def _unexplained(modules: list[str]) -> list[str]:
    _, _, failing = numba_suite.read_rules()
    rows = numba_suite.run(modules)
    assert sum(outcome == "pass" for _, outcome, _ in rows) >= len(modules)
    return [
        f"{test}\n{why}"
        for test, outcome, why in rows
        if outcome == "fail" and not numba_suite.reason_for(test, failing)
    ]


def test_some_modules():
    assert _unexplained(QUICK) == []


@pytest.mark.long
@pytest.mark.timeout(900)
def test_all_modules():
    assert _unexplained(numba_suite.read_rules()[0]) == []


def test_every_module_is_run_or_left_out_with_a_reason():
    found = importlib.util.find_spec("numba.cuda.tests.cudapy")
    assert found is not None
    folder = Path(next(iter(found.submodule_search_locations or ())))
    run, left_out, failing = numba_suite.read_rules()
    missing = {p.stem for p in folder.glob("test_*.py")} - set(run)
    assert [m for m in sorted(missing) if not numba_suite.reason_for(f"{m}.x.y", left_out)] == []
    assert all(left_out.values())
    assert all(failing.values())


def test_at_least_85_percent_pass():
    with open(numba_suite.RESULTS, newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    passed = sum(row["outcome"] == "pass" for row in rows)
    failed = [row for row in rows if row["outcome"] == "fail"]
    assert passed >= 0.85 * (passed + len(failed))
    assert all(row["reason"] for row in rows if row["outcome"] != "pass")
