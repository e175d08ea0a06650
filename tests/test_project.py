"""The rules of the project that no single module's tests can see: layers, registry, documents."""

import ast
import configparser
import importlib.util
import json
import re
import runpy
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import blutrain as bt
from blutrain.autograd.registry import OPS

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "blutrain"

# Imports point one way: a module may import from its own layer and from those before it.
LAYERS = [
    {"errors", "dtypes"},
    {"device", "memory", "precision", "profiler"},
    {"tensor", "dlpack", "printing", "random"},
    {"autograd"},
    {"cuda_kernels"},
    {"ops"},
    {"nn", "optim"},
    {"models", "data", "io"},
    {"doctor", "__main__"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
# What only the two folders that compile and launch kernels may import.
COMPILERS = {"numba", "llvmlite", "cuda"}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def layer(path: Path) -> str:
    """The first part of a module's name under the package, "" for the package itself."""
    first = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return "" if first == "__init__" else first


def imports(path: Path) -> Iterator[str]:
    """Dotted names that a file imports, wherever in it the import stands."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_every_module_belongs_to_a_layer() -> None:
    assert {layer(p) for p in modules()} - {""} <= set(LEVEL)


def test_imports_point_one_way() -> None:
    wrong = []
    for path in modules():
        here = layer(path)
        if not here:
            continue
        for imported in imports(path):
            parts = imported.split(".")
            if parts[0] != "blutrain":
                continue
            if len(parts) > 1 and LEVEL[parts[1]] > LEVEL[here]:
                wrong.append(f"{path.relative_to(ROOT)} ({here}) imports {imported}")
    assert not wrong, "\n".join(wrong)


def test_only_device_and_kernels_import_the_compiler() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {imported}"
        for path in modules()
        if layer(path) not in ("device", "cuda_kernels")
        for imported in imports(path)
        if imported.split(".")[0] in COMPILERS
    ]
    assert not wrong, "\n".join(wrong)


def test_the_package_never_imports_pytorch() -> None:
    assert not [p for p in modules() for name in imports(p) if name.split(".")[0] == "torch"]


def decorated_with(node: ast.FunctionDef, text: str) -> bool:
    return any(text in ast.unparse(d) for d in node.decorator_list)


def kernels_in(path: Path) -> list[str]:
    """Names of the kernels (not device functions) that a file defines."""
    return [
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
        and decorated_with(node, "cuda.jit")
        and not decorated_with(node, "device=True")
    ]


def kernel_files() -> list[Path]:
    return [p for p in modules() if layer(p) == "cuda_kernels" and kernels_in(p)]


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def registered_modules() -> set[str]:
    """Modules of the ops' functions, and the kernel files that those or ops.py import."""
    functions = [f for op in OPS.values() for f in (op.forward, op.backward, op.call) if f]
    found = {f.__module__ for f in functions} | {"blutrain.ops"}
    graph = {dotted(p): set(imports(p)) for p in modules() if layer(p) in ("cuda_kernels", "ops")}
    waiting = list(found)
    while waiting:
        for imported in graph.get(waiting.pop(), set()) & graph.keys() - found:
            found.add(imported)
            waiting.append(imported)
    return found


def test_there_are_kernels_and_ops() -> None:
    assert len(kernel_files()) > 10
    assert len(OPS) > 30


@pytest.mark.parametrize("path", kernel_files(), ids=lambda p: p.stem)
def test_kernel_file_is_registered_and_explained(path: Path) -> None:
    module = dotted(path)
    assert module in registered_modules(), f"{module} has kernels that no registered op uses"
    assert ast.get_docstring(ast.parse(path.read_text())), f"{module}: what is computed, and how?"
    assert all(name.endswith("kernel") for name in kernels_in(path)), kernels_in(path)


@pytest.mark.parametrize("name", sorted(OPS))
def test_op_is_complete(name: str) -> None:
    op = OPS[name]
    assert list(op.samples(np.random.default_rng(0))), "samples() must give some"
    assert list(op.errors()), "errors() must give some"
    if op.differentiable:
        assert op.backward is not None
    if op.call.__name__.startswith("_"):
        return  # one case of another op's public function, as gelu's tanh form is
    assert hasattr(bt, name), f"bt.{name} must exist: add its line to blutrain/ops.py"
    example = ">>>" in (getattr(bt, name).__doc__ or "")
    assert example, "the public function's docstring needs an example"


def test_launchers_are_typed() -> None:
    """mypy takes a function without annotations as a kernel: a launcher must not hide there."""
    missing = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in modules()
        if layer(path) == "cuda_kernels"
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef)
        and not node.decorator_list
        and not node.name.startswith("_")
        and node.returns is None
    ]
    assert not missing, "\n".join(missing)


def test_attached_methods_are_declared_for_type_checkers() -> None:
    tree = ast.parse((PACKAGE / "tensor.py").read_text())
    block = next(
        n
        for n in ast.walk(tree)
        if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.unparse(n.test)
    )
    declared = {n.name for n in block.body if isinstance(n, ast.FunctionDef)}
    declared |= {t.id for n in block.body if isinstance(n, ast.Assign) for t in n.targets}
    assert set(bt.ops._METHODS) - {"__repr__", "__str__"} == declared - {"_method", "_binary"}


def test_names_say_what_is_inside() -> None:
    vague = {"utils", "util", "helpers", "helper", "misc", "common_utils"}
    assert not [p for p in modules() if p.stem in vague or vague & set(p.parts)]


def tracked_texts() -> list[Path]:
    """Text files of the project: what git knows of, or in an archive without git, what is there."""
    listing = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listing.returncode != 0:
        return [*modules(), *ROOT.glob("*.md"), *ROOT.glob("tests/**/*.py")]
    paths = [ROOT / line for line in listing.stdout.splitlines()]
    return [p for p in paths if p.is_file() and p.suffix not in {".png", ".npz", ".bin"}]


def test_no_loose_ends_and_no_machine_paths() -> None:
    # Spelt in pieces, or this file would be its own finding.
    loose = re.compile(
        "|".join(["TO" + "DO", "FIX" + "ME", "X" + "XX", "(?<![\\w.])/(work|root|home)/"])
    )
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in tracked_texts()
        if path.name != "LICENSE"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if loose.search(line)
    ]
    assert not found, "\n".join(found)


def test_metadata() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    assert setup["metadata"]["version"] == bt.__version__
    extras = {
        "cu13",
        "cu12",
        "mlir",
        "mpich",
        "openmpi",
        "impi",
        "data",
        "io",
        "viz",
        "docs",
        "dev",
    }
    assert extras <= set(setup["options.extras_require"])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert set(project) == {"build-system", "tool"}
    assert set(project["tool"]) == {"ruff"}
    for name in ("LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile", ".ci/run"):
        assert (ROOT / name).is_file(), name


def test_what_make_installs_is_pinned() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    pins = {
        re.split("==", line)[0].lower()
        for name in ("constraints", "cu13")
        for line in (ROOT / "constraints" / f"{name}.txt").read_text().splitlines()
        if line and not line.startswith("#")
    }
    extras = setup["options.extras_require"]
    wanted = "\n".join(
        [setup["options"]["install_requires"], *(extras[e] for e in ("dev", "viz", "cu13"))]
    )
    names = {re.split(r"[\[<>=~]", line)[0].lower() for line in wanted.split("\n") if line}
    assert names <= pins, names - pins


@pytest.mark.parametrize(
    "path", sorted((ROOT / "benchmarks/results").glob("*.json")), ids=lambda p: p.stem
)
def test_benchmark_result_has_the_form(path: Path) -> None:
    result = json.loads(path.read_text())
    assert path.stem == f"{result['bench']}-{result['device']}"
    assert {"device_name", "date", "commit", "versions"} <= set(result)
    assert result["commit"], "which commit was measured?"
    fields = {"case", "metric", "unit", "better", "ours", "peer", "theirs"}
    fields |= {"error_ours", "error_theirs"}
    assert result["rows"]
    for row in result["rows"]:
        assert set(row) == fields
        assert row["better"] in ("higher", "lower")
        assert (row["peer"] is None) == (row["theirs"] is None)


def python_blocks(document: Path) -> str:
    """A document's ```python blocks, one after the other, each on its own lines of the document."""
    inside, lines = False, []
    for line in document.read_text().splitlines():
        fence = line.startswith("```")
        inside = (line == "```python") if fence else inside
        lines.append(line if inside and not fence else "")
    return "\n".join(lines)


DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.stem)
def test_document_runs_as_printed(document: Path, tmp_path: Path) -> None:
    """From a file, since kernels are compiled from their source text."""
    script = tmp_path / f"{document.stem}_blocks.py"
    script.write_text(python_blocks(document))
    runpy.run_path(str(script))


def test_document_links_lead_somewhere() -> None:
    broken = [
        f"{document.name}: {target}"
        for document in [*DOCUMENTS, ROOT / "CONTRIBUTING.md"]
        for target in re.findall(r"\]\(([^)#]+)", document.read_text())
        if "://" not in target and not (document.parent / target).exists()
    ]
    assert not broken, "\n".join(broken)


def test_op_table_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("make_op_table", ROOT / "docs/make_op_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (ROOT / "docs/ops.md").read_text() == module.table(), "run `make docs`"
