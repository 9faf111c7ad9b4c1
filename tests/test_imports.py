"""Imports point one way, importing Credo is light and changes nothing, and no name stands for two things."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import credo

ROOT = Path(credo.__file__).parent

# From the ground up; a module may import its own layer and those above it in this list. The longest prefix decides.
LAYERS = (
    ("_version", "status", "precision", "timing", "tree", "equations", "sharing", "places", "depthwise", "convolutions",
     "storage", "memory", "ordered", "normals", "traced", "batches", "lapack", "compiling", "lowered", "collector",
     "cores", "noise", "arguments", "notes"),
    ("linalg",),
    ("checkpoint",),
    ("model",),
    ("adapters",),
    ("algorithm", "gradients", "native", "progress", "stopping"),
    ("journal", "chunk"),
    ("crew",),
    ("run", "course"),
    ("diagnose.convergence", "diagnose.pareto", "diagnose.startup", "diagnose.rules", "diagnose.verdict",
     "diagnose.checks", "diagnose.curve", "diagnose.edges", "diagnose.endless", "diagnose.geometry",
     "diagnose.jumps", "diagnose.sd_error", "diagnose.moments", "diagnose.function_space"),
    ("posterior",),
    ("predict",),
    ("methods.settings", "methods.from_prior",
     "methods.optimise", "methods.particles.wide_mixture", "methods.particles.weighing",
     "methods.particles.points", "methods.particles.reach", "methods.particles.importance",
     "methods.particles.copies", "methods.particles.elsewhere", "methods.particles.left_out",
     "methods.particles.correction", "methods.particles.scalars", "methods.particles.weighed",
     "methods.particles.modes", "methods.particles.unmet", "methods.particles.straightened",
     "methods.exact.checks", "methods.exact.family", "methods.exact.information"),
    ("methods.exact", "methods.laplace", "methods.vi", "methods.mcmc", "methods.sgmcmc", "methods.ensemble",
     "methods.networks", "methods.particles", "methods.grid"),
    ("methods",),  # the package itself
    # what fitting adds to a verdict, and where it begins
    ("diagnose.angles", "diagnose.derived", "diagnose.scales", "starting"),
    ("fitting",),
    ("diagnose", "evidence", "decisions"),  # what is left of diagnose: sbc, calibration, checks
    ("models", "nn"),
    ("estimators",),
    ("reporting",),
    ("cli",),
    ("__main__", "", "exact", "laplace", "mcmc", "plots", "sgmcmc", "vi"),  # public addresses
)  # fmt: skip
RANK = {prefix: rank for rank, layer in enumerate(LAYERS) for prefix in layer}
SHARED_METHODS = (
    "methods.settings",
    "methods.from_prior",
    "methods.optimise",
    "methods.particles.importance",
    "methods.particles.correction",
    "methods.particles.copies",
    "methods.particles.elsewhere",
    "methods.particles.left_out",
    "methods.particles.modes",
    "methods.particles.points",
    "methods.particles.scalars",
    "methods.particles.reach",
    "methods.particles.straightened",
    "methods.particles.unmet",
    "methods.particles.weighed",
    "methods.particles.weighing",
    "methods.particles.wide_mixture",
    "methods.exact.checks",  # ready models of coordinate ascent speak as the exact families do
    "methods.exact.family",
    "methods.exact.information",
)
LATE = ("posterior", "predict")  # Posterior.predict: one line inside a function

HEAVY = (
    "arviz_base",
    "arviz_stats",
    "arviz_plots",
    "arviz",
    "matplotlib",
    "pandas",
    "sklearn",
    "scipy.stats",
    "formulaic",
)
HEAVY_ALLOWED = ("estimators", "reporting", "cli")  # loaded on demand themselves; estimators need the base classes


class Import(NamedTuple):
    module: str  # imported name, absolute
    line: int
    where: str  # "top", "typing" or "late"
    text: str


def test_imports_point_down_the_list():
    problems, late = [], []
    for path, module in modules():
        for found in imports(path, module):
            target = inside(found.module)
            if target is None:
                continue
            if problem := direction_problem(module, target):
                if (prefix(module), prefix(target)) == LATE and found.where != "top":
                    late += [found] if found.where == "late" else []
                    continue
                problems.append(f"{path.relative_to(ROOT)}, line {found.line}: `{found.text}`: {problem}.")
    assert not problems, "\n".join(problems)
    assert len(late) <= 1, f"only one late import of predict in posterior is allowed; these are: {late}"


def test_heavy_libraries_are_imported_where_they_are_used():
    problems = [
        f"{path.relative_to(ROOT)}, line {found.line}: `{found.text}` loads slowly: import it inside the function"
        for path, module in modules()
        if module.split(".")[0] not in HEAVY_ALLOWED
        for found in imports(path, module)
        if found.where == "top" and any(within(found.module, heavy) for heavy in HEAVY)
    ]
    assert not problems, "\n".join(problems)


def test_no_name_of_a_package_hides_its_submodule():
    """``from credo.a.b import b`` in ``credo/a/__init__.py`` gives ``credo.a.b`` two meanings, by order of import."""
    problems = []
    for path, module in modules():
        if path.name != "__init__.py":
            continue
        siblings = {child.stem for child in path.parent.iterdir() if child.suffix == ".py" or is_package(child)}
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names = {node.name}
            elif isinstance(node, ast.ImportFrom) and source_of(node, path, module) != absolute(module):
                names = {alias.asname or alias.name for alias in node.names}
            else:
                continue
            problems += [f"{path.relative_to(ROOT)}, line {node.lineno}: {n}" for n in names & siblings]
    assert not problems, "a name that is a submodule's as well: " + "; ".join(problems)


LIGHT = f"""
import sys
import jax
from jax._src import xla_bridge
before = dict(jax.config.values)
import credo
assert "credo.model" not in sys.modules, "a name was loaded before it was used"
for name in set(credo.__all__) - {{"estimators"}}:  # whose base classes are scikit-learn's
    getattr(credo, name)
assert dict(jax.config.values) == before, "importing credo changed JAX's settings"
assert not xla_bridge.backends_are_initialized(), "importing credo computed something"
heavy = sorted(set({HEAVY!r}) & set(sys.modules))
assert not heavy, f"importing credo loaded {{heavy}}"
"""

NAMES = """
import importlib.util
from types import ModuleType
import credo
public = {name: getattr(credo, name) for name in credo.__all__}
twice = sorted(
    name for name, value in public.items()
    if importlib.util.find_spec(f"credo.{name}") and not isinstance(value, ModuleType)
)
assert not twice, f"names of functions or classes that are modules too: {twice}"
silent = sorted(name for name, value in public.items() if callable(value) and not value.__doc__)
assert not silent, f"public names without a docstring: {silent}"
assert len(credo.__all__) == len(set(credo.__all__)), "a name stands twice in credo.__all__"
"""


def test_importing_credo_is_light_and_changes_no_setting():
    run(LIGHT)


def test_public_names_resolve_are_explained_and_name_no_module():
    run(NAMES)


def test_the_parser_sees_what_it_should():
    """The check of imports would find an upward import, a family importing another and a module nobody ranked."""
    assert direction_problem("model.target", "posterior.posterior")
    assert direction_problem("methods.vi.advi", "methods.laplace.laplace")
    assert direction_problem("methods.vi.advi", "methods")
    assert direction_problem("posterior.posterior", "diagnose.sbc")
    assert direction_problem("linalg.dense", "")
    assert direction_problem("linalg.dense", "nowhere")
    assert direction_problem("methods.novelty.page", "model")
    assert not direction_problem("methods.vi.advi", "methods.optimise.map")
    assert not direction_problem("methods.particles.smc", "methods.particles.importance")
    assert not direction_problem("methods.vi.advi", "methods.vi.families.meanfield")
    assert not direction_problem("posterior.posterior", "diagnose.verdict")


def direction_problem(importer: str, target: str) -> str | None:
    """Why ``importer`` may not import ``target`` (both relative to credo), or None."""
    for name in (importer, target):
        ranked = prefix(name)
        if (ranked == "" and name != "") or (ranked == "methods" and name != "methods"):
            return f"credo.{name} has no layer yet: add it to LAYERS in tests/test_imports.py"
    here, there = prefix(importer), prefix(target)
    if RANK[there] > RANK[here]:
        return f"credo.{here} lies below {absolute(there)} and may not import it"
    families = [name for name in (here, there) if name.startswith("methods.")]
    if len(families) == 2 and family(here) != family(there) and there not in SHARED_METHODS:
        return f"credo.{here} and credo.{there} are families of methods, which do not import one another"
    return None


def family(module: str) -> str:
    return module.split(".")[1]


def prefix(module: str) -> str:
    """The entry of LAYERS that decides about ``module``."""
    parts = module.split(".")
    return next((p for n in range(len(parts), 0, -1) if (p := ".".join(parts[:n])) in RANK), "")


def modules() -> Iterator[tuple[Path, str]]:
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        yield path, ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, module: str) -> Iterator[Import]:
    def visit(node: ast.AST, where: str) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            inner = where
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                inner = "late"
            elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                inner = "typing"
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(alias.name, child.lineno, where, ast.unparse(child))
            elif isinstance(child, ast.ImportFrom):
                source = source_of(child, path, module)
                for alias in child.names:
                    # `from credo.methods import vi` imports a module, `from credo.model import Model` a name of one
                    full = f"{source}.{alias.name}"
                    yield Import(full if is_module(full) else source, child.lineno, where, ast.unparse(child))
            yield from visit(child, inner)

    return visit(parse(path), "top")


def source_of(node: ast.ImportFrom, path: Path, module: str) -> str:
    """The absolute name of the module that ``from … import`` reads."""
    if not node.level:
        return node.module or ""
    package = absolute(module).split(".")
    package = package if path.name == "__init__.py" else package[:-1]
    base = package[: len(package) - (node.level - 1)]
    return ".".join([*base, node.module] if node.module else base)


def inside(name: str) -> str | None:
    """``credo.a.b`` -> ``a.b``; None outside of Credo."""
    return name.removeprefix("credo").removeprefix(".") if within(name, "credo") else None


def absolute(module: str) -> str:
    return f"credo.{module}" if module else "credo"


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def is_module(name: str) -> bool:
    if within(name, "scipy.stats"):
        return True
    relative = inside(name)
    return relative is not None and (
        (path := ROOT / relative.replace(".", "/")).with_suffix(".py").is_file() or is_package(path)
    )


def is_package(path: Path) -> bool:
    return (path / "__init__.py").is_file()


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def run(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]


def test_no_program_is_left_to_the_defaults_of_the_compiler():
    """Which has sums in single precision wrong (``credo.compiling.sound``)."""
    within = {"compiling.py", "native.py", "sharing.py", "adapters/aten/pointwise.py"}  # these choose, or run in others
    found = {
        str(path.relative_to(ROOT))
        for path in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr == "jit" and getattr(node.value, "id", "") == "jax"
    }
    assert found <= within
