# The environment of this process and its jobs, and the study that the config describes.
import ast
import hashlib
import json
import os
import sys
from pathlib import Path

from snakemake.logging import logger

# The interpreter that runs Snakemake, the package beside the Snakefile, and one core a job.
BASE = workflow.basedir
sys.path.insert(0, BASE)
for name, folder in {
    "PATH": str(Path(sys.executable).parent),
    "PYTHONPATH": BASE,
}.items():
    os.environ[name] = os.pathsep.join(filter(None, [folder, os.environ.get(name)]))
for name in ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[name] = "1"

import kvsim
from kvsim import figures, reference
from kvsim.digest import model_digest, modules_digest
from kvsim.grid import ConfigError, load_config, overlaps


def typed(value):
    """Give back the numbers in a nested value of --config, which Snakemake reads as text."""
    if isinstance(value, dict):
        return {key: typed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [typed(item) for item in value]
    for kind in (int, float) if isinstance(value, str) else ():
        try:
            return kind(value)
        except ValueError:
            pass
    return value


def load_study():
    """Read the config, or end with a line for everything that is wrong with it.

    The files themselves are read, because Snakemake's reader passes over YAML's traps. Those of --configfile
    take the place of the default study, which Snakemake's own `configfile:` would mix into them.
    """
    paths = workflow.overwrite_configfiles or [Path(BASE, "config", "config.yaml")]
    changes = typed(dict(workflow.config_settings.config)) or None
    try:
        study = load_config(
            list(map(os.path.relpath, paths)), changes, figure_check=figures.check
        )
    except ConfigError as error:
        sys.exit("\n".join(error.lines))
    if workflow.is_main_process:
        for line in overlaps(study):
            logger.warning(line)
    return study


STUDY = load_study()
JOBS = {
    job.path: job
    for experiment in STUDY.experiments.values()
    for job in experiment.jobs
}


def job_of(wildcards):
    """The job that writes a file of trials."""
    path = f"{wildcards.experiment}/trials/{wildcards.cell}/{wildcards.block}.parquet"
    if path not in JOBS:
        raise WorkflowError(
            f"results/{path} is not part of the study that the config describes"
        )
    return JOBS[path]


def trials_of(wildcards):
    """The files that the jobs of an experiment write."""
    return [
        f"results/{job.path}" for job in STUDY.experiments[wildcards.experiment].jobs
    ]


def imports(path, known=()):
    """The modules of kvsim that a file of Python imports, and those that they import in turn."""
    nodes = ast.walk(ast.parse(path.read_text()))
    origins = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    modules = {name.partition(".")[2] for name in origins if name.startswith("kvsim.")}
    for module in modules.difference(known):
        modules |= imports(
            Path(kvsim.__file__).with_name(f"{module}.py"), modules.union(known)
        )
    return modules


def sources_digest(script):
    """Digest of all that makes a table or a figure of trials: a script and what it imports."""
    path = Path(BASE, "workflow", "scripts", script)
    modules = modules_digest(tuple(sorted(imports(path))))
    return f"{modules} {hashlib.sha256(path.read_bytes()).hexdigest()[:16]}"
