# A run that was killed goes on with the same command: what stops Snakemake then is cleared away, unless another
# run is alive in the same folder.
import fcntl
import shutil
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
        code = "".join(part.removeprefix("@") for part in marker.relative_to(markers).parts)
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


if workflow.is_main_process and any(Path(".snakemake").glob("locks/*")):
    clear_killed_run()
