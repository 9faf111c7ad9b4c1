"""Arguments of compiled programs come in one order, whatever the process."""

import os
import subprocess
import sys

import jax
import numpy as np
import numpyro.distributions as dist

from credo.ordered import Ordered, plain

PROGRAM = """
import numpy as np, numpyro.distributions as dist, credo
from credo.ordered import Ordered
c = dist.StudentT(5.0, 6.0, 7.0).expand([2]).to_event(1)
prior = {"a": dist.Normal(1.0, 2.0), "b": dist.Gamma(3.0, 4.0), "c": c}
model = credo.Model(prior, lambda params, x: dist.Normal(params["a"], params["b"]))
target = model.given(y=np.array([8.0, 9.0]))
print([np.ravel(leaf).tolist() for leaf in Ordered.of(target).leaves])
"""


def test_every_process_has_the_same_order():
    found = set()
    for seed in "1234":
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
        )
        found.add(done.stdout)
    assert len(found) == 1, found


def test_a_prior_pickled_in_another_process_is_the_same(tmp_path):
    """Location and scale changed places where it was pickled by its structure."""
    write = """
import pickle, sys, numpyro.distributions as dist
from credo.model.prior import Prior
open(sys.argv[1], "wb").write(pickle.dumps(Prior({"a": dist.Normal(1.0, 2.0), "c": dist.StudentT(5.0, 6.0, 7.0)})))
"""
    read = """
import pickle, sys
prior = pickle.load(open(sys.argv[1], "rb"))
normal, student = prior.trees
print(*map(float, (normal.loc, normal.scale, student.df, student.loc, student.scale)))
"""
    path = str(tmp_path / "prior")
    for seed, program in [("1", write), *((seed, read) for seed in "1234")]:
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", program, path], env=environment, capture_output=True, text=True, check=True
        )
        assert not done.stdout or done.stdout.split() == ["1.0", "2.0", "5.0", "6.0", "7.0"]


def test_the_tree_comes_back_as_it_was():
    tree = {
        "normal": dist.Normal(1.0, np.array([2.0, 3.0])),
        "nested": dist.TransformedDistribution(dist.Normal(0.5, 4.0), dist.transforms.ExpTransform()),
        "mixed": [np.arange(3), None, (dist.Beta(5.0, 6.0).expand([2]), 7.0)],
    }
    ordered = Ordered.of(tree)
    assert len(ordered.leaves) == len(jax.tree.leaves(tree))
    assert jax.tree.structure(plain(ordered)) == jax.tree.structure(tree)
    jax.tree.map(np.testing.assert_array_equal, plain(ordered), tree)
    assert plain(tree) is tree
    doubled = plain(jax.jit(lambda tree: jax.tree.map(lambda leaf: 2 * leaf, tree))(ordered))
    jax.tree.map(lambda new, old: np.testing.assert_allclose(new, 2 * old), doubled, tree)


def test_a_second_process_finds_its_programs_on_the_disk(tmp_path):
    """Three programs a fit, however the names of a distribution's arrays are hashed."""
    program = f"""
import jax
jax.config.update("jax_compilation_cache_dir", {str(tmp_path)!r})
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
import numpy as np, numpyro.distributions as dist, credo
model = credo.Model({{"a": dist.Normal(1.0, 2.0), "b": dist.Gamma(3.0, 4.0)}}, lambda p, x: dist.Normal(p["a"], p["b"]))
credo.fit(model.given(y=np.array([1.0, 2.0])), credo.NUTS(num_warmup=20, num_draws=20), progress=False)
"""
    counts = []
    for seed in "123":
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", program], env=environment, check=True)
        counts.append(len(list(tmp_path.glob("jit_program*-cache"))))
    assert counts[0] == counts[-1] > 0
