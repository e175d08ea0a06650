"""numba-cuda's own kernel tests, from the installed package, run on the CPU executor.

    cd tests
    python -m cpu_executor.numba_suite            # run all, compare with numba_suite.tsv
    python -m cpu_executor.numba_suite --write    # and write numba_suite.tsv anew
    python -m cpu_executor.numba_suite test_sync  # some modules only

`numba_suite.txt` says which tests have nothing to do with running a kernel, and why, and which
fail, and why; `numba_suite.tsv` has the outcome of every test. Each module runs in a process of its
own, since `numba_host.install` changes numba-cuda for good.
"""

from __future__ import annotations

import argparse
import fnmatch
import inspect
import json
import os
import signal
import subprocess
import sys
import unittest
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RULES, RESULTS = HERE / "numba_suite.txt", HERE / "numba_suite.tsv"
SECONDS_A_TEST, SECONDS_A_MODULE = 60, 400

# Pattern of test names -> reason.
Rules = dict[str, str]


def read_rules() -> tuple[list[str], Rules, Rules]:
    """(modules to run, patterns left out, patterns that fail), the two with reasons."""
    sections: dict[str, Rules] = {"run": {}, "out": {}, "fails": {}}
    section: Rules = {}
    reason = ""
    for line in RULES.read_text().splitlines():
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        if text.startswith("["):
            section = sections[text.strip("[]")]
        elif text.endswith(":"):
            reason = text.removesuffix(":")
        else:
            section.update(dict.fromkeys(text.split(), reason))
    return list(sections["run"]), sections["out"], sections["fails"]


def reason_for(name: str, rules: Rules) -> str:
    """The reason of the first pattern that a test's name matches, or ""."""
    return next((why for p, why in rules.items() if fnmatch.fnmatchcase(name, p)), "")


def _tests(suite: Any) -> Iterator[unittest.TestCase]:
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from _tests(test)
        else:
            yield test


def run_here(module: str, left_out: Rules) -> None:
    """Run one module's tests in this process; a line of JSON for each as it ends."""
    from cpu_executor import numba_host

    numba_host.install()
    warnings.simplefilter("ignore")
    loaded = numba_host.import_tests(module)
    tests = list(_tests(unittest.defaultTestLoader.loadTestsFromModule(loaded)))
    # Some are functions for pytest.
    tests += [
        unittest.FunctionTestCase(value, description=f"{module}.{known}")
        for known, value in vars(loaded).items()
        if known.startswith("test_") and inspect.isfunction(value)
        and not inspect.signature(value).parameters
    ]  # fmt: skip
    signal.signal(signal.SIGALRM, _out_of_time)
    for test in tests:
        function = isinstance(test, unittest.FunctionTestCase)
        name = str(test.shortDescription()) if function else test.id().split("cudapy.")[-1]
        if reason_for(name, left_out):
            continue
        outcome, why = _outcome(test)
        print("\n" + json.dumps([name, outcome, why]), flush=True)


def _outcome(test: unittest.TestCase) -> tuple[str, str]:
    result = unittest.TestResult()
    signal.alarm(SECONDS_A_TEST)
    try:
        test.run(result)
    finally:
        signal.alarm(0)
    bad = result.errors + result.failures
    if bad:
        why = bad[0][1]
        # pytest's way to skip, which unittest takes for an error.
        last = why.strip().splitlines()[-1]
        return ("out", last) if last.startswith("Skipped: ") else ("fail", why)
    if result.skipped:
        return "out", result.skipped[0][1]
    return ("fail", "an expected failure passed") if result.unexpectedSuccesses else ("pass", "")


def _out_of_time(*_: Any) -> None:
    raise TimeoutError(f"more than {SECONDS_A_TEST} s")


def run_module(module: str) -> list[tuple[str, str, str]]:
    """(test, outcome, traceback) of a module's tests, which run in a process of their own."""
    command = [sys.executable, "-m", "cpu_executor.numba_suite", "--here", module]
    done = subprocess.run(
        command, cwd=HERE.parents[1], env=_environment(), capture_output=True, text=True,
        timeout=SECONDS_A_MODULE, check=False,
    )  # fmt: skip
    rows = [tuple(json.loads(s)) for s in done.stdout.splitlines() if s.startswith('["test_')]
    if done.returncode:
        rows.append((f"{module}.*", "fail", done.stderr))
    return rows  # type: ignore[return-value]


def _environment() -> dict[str, str]:
    paths = [str(HERE.parents[1]), str(HERE.parent), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in paths if p)}


def run(modules: Sequence[str], workers: int = 2) -> list[tuple[str, str, str]]:
    """(test, "pass", "fail" or "out", reason or traceback) of all tests, sorted."""
    _, left_out, failing = read_rules()
    with ThreadPoolExecutor(workers) as pool:
        rows = [row for rows in pool.map(run_module, modules) for row in rows]
    rows = [(t, o, reason_for(t, failing) or why if o == "fail" else why) for t, o, why in rows]
    whole = [(p, "out", why) for p, why in left_out.items()]
    return sorted(rows + whole)


def write(rows: Sequence[tuple[str, str, str]], modules: Sequence[str]) -> None:
    """Write the outcomes; when only some modules ran, those of the others stay as they are."""
    new = [[t, o, why.strip().splitlines()[-1] if why else ""] for t, o, why in rows]
    kept: list[list[str]] = []
    if modules and RESULTS.exists():
        old = [line.split("\t") for line in RESULTS.read_text().splitlines()[1:]]
        kept = [row for row in old if "*" not in row[0] and row[0].split(".")[0] not in modules]
    lines = [
        "\t".join(row).rstrip() for row in [["test", "outcome", "reason"], *sorted(kept + new)]
    ]
    RESULTS.write_text("\n".join(lines) + "\n")


def main() -> int:
    """Run, print a summary; 1 when a test fails that numba_suite.txt does not name."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("modules", nargs="*")
    parser.add_argument("--here", help=argparse.SUPPRESS)
    parser.add_argument("--write", action="store_true", help="write numba_suite.tsv")
    given = parser.parse_args()
    modules, left_out, failing = read_rules()
    if given.here:
        run_here(given.here, left_out)
        return 0
    rows = run(given.modules or modules)
    if given.write:
        write(rows, given.modules)
    counts = Counter(outcome for _, outcome, _ in rows)
    n = counts["pass"] + counts["fail"]
    print(f"{counts['pass']} of {n} kernel tests pass ({100 * counts['pass'] / max(1, n):.1f}%)")
    surprises = [(t, why) for t, o, why in rows if o == "fail" and not reason_for(t, failing)]
    for test, why in surprises:
        print(f"\n{test}\n{why}")
    return bool(surprises)


if __name__ == "__main__":
    sys.exit(main())
