# A run that was killed goes on with the same command: what stops Snakemake then is cleared away, unless another
# run is alive in the same folder.
import fcntl
import shutil
import subprocess
from base64 import urlsafe_b64decode


def claim_folder():
    """Take a lock that the system drops when this process ends, however it ends; None if another run has it."""
    lock = os.open(".snakemake/kvsim.lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def clear_killed_run():
    """Remove Snakemake's own lock, and the outputs of the jobs that were at work."""
    lock = claim_folder()
    if lock is None:
        return
    shutil.rmtree(".snakemake/locks", ignore_errors=True)
    markers = Path(".snakemake/incomplete")
    for marker in [path for path in markers.rglob("*") if path.is_file()]:
        # Snakemake names a marker by the output's path in base 64, cut into folders if it is long.
        code = "".join(
            part.removeprefix("@") for part in marker.relative_to(markers).parts
        )
        output = Path(urlsafe_b64decode(code).decode())
        if output.parts[0] == "results":
            output.unlink(missing_ok=True)
            marker.unlink(missing_ok=True)
    os.close(lock)


def begin_run():
    """Hold this folder until the process ends, and remove the temporary files of killed jobs."""
    if claim_folder() is None:
        raise WorkflowError("Another run of Snakemake is at work in this folder.")
    for leftover in Path("results").glob("**/.*.part*"):
        leftover.unlink(missing_ok=True)
    compile_first()


def compile_first():
    """Compile the simulator once, where the first of many jobs would all do it at the same time.

    A note says what has been compiled. If it errs, jobs compile for themselves what they do not find.
    """
    needed = [job for job in workflow.dag.needrun_jobs() if job.rule.name == "simulate"]
    scenarios = {s for job in needed for s in job_of(job.wildcards).scenarios}
    folder = Path(".snakemake", "compiled", model_digest())
    missing = sorted(
        p for p in {s.policy for s in scenarios} if not (folder / p).exists()
    )
    if len(needed) < 2 or not missing:
        return
    logger.info(f"Compiling the simulator for {', '.join(missing)}.")
    command = f"{sys.executable} -m kvsim run --seeds 0 --output {folder}/trials.parquet --grid".split()
    command.append(f"policy={','.join(missing)} warm_steps=0")
    if subprocess.run(command, capture_output=True).returncode == 0:
        for policy in missing:
            (folder / policy).touch()


if workflow.is_main_process and any(
    any(Path(".snakemake", folder).glob("*")) for folder in ("locks", "incomplete")
):
    clear_killed_run()
