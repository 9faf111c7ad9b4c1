"""Prints the flags of XLA by which a program that runs once is had soonest, or nothing where this XLA lacks one.

Most programs of the core tests run once and compile for longer. Level 1 is that of chains' programs, which name it
themselves; at level 0 the few that work for long, a grid over hundreds of rows, take twice as long. The slow tests, the
demo and the examples compile as users do, as the core tests do without ``XLA_FLAGS``.
"""

import os
import subprocess
import sys

FLAGS = (
    "--xla_backend_optimization_level=1 --xla_llvm_disable_expensive_passes=true --xla_cpu_use_fusion_emitters=false "
    "--xla_cpu_parallel_codegen_split_count=1"  # both cores have tests to run
)

if __name__ == "__main__":  # an unknown flag ends the process that meets it
    trial = [sys.executable, "-c", "import jax.numpy; jax.numpy.ones(2) + 1"]
    known = subprocess.run(trial, env={**os.environ, "XLA_FLAGS": FLAGS}, capture_output=True).returncode == 0
    print(FLAGS if known else "")
