#!/usr/bin/env bash
# Run the small study through profiles/slurm on a cluster of one node, this machine, and compare its results with
# those of a local run. By hand, as root on Debian, in a checkout with its .venv:
#
#     tests/cluster/run.sh
#
# Installs slurm-wlm and munge if they are missing; ends what it starts.
set -euo pipefail

project=$(cd "$(dirname "$0")/../.." && pwd)
folder=$(mktemp -d)
conf=/etc/slurm/slurm.conf

stop() {
    for daemon in slurmd slurmctld munge/munged; do
        if [ -s "$folder/$daemon.pid" ]; then
            kill "$(cat "$folder/$daemon.pid")" 2>/dev/null || true
        fi
    done
    sleep 2
    [ "$(readlink "$conf")" != "$folder/slurm.conf" ] || rm "$conf"
    rm -rf "$folder"
}
trap stop EXIT

begun=$SECONDS
started=$SECONDS
if ! command -v slurmctld munged >/dev/null; then
    apt-get update
    apt-get install -y --no-install-recommends slurm-wlm munge
fi
echo "packages: $((SECONDS - started)) s"

# The plugin goes into an environment of its own, on top of the project's.
"$project/.venv/bin/python" -m venv "$folder/venv"
site=$("$project/.venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
echo "$site" > "$("$folder/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/project.pth"
"$folder/venv/bin/pip" install --quiet "snakemake-executor-plugin-slurm>=2"

started=$SECONDS
chmod 755 "$folder"
mkdir -p "$folder/state" "$folder/spool" "$folder/munge"
mungekey --create --keyfile="$folder/munge/key"
chown -R munge: "$folder/munge"
runuser -u munge -- munged --key-file="$folder/munge/key" --socket="$folder/munge/socket" \
    --pid-file="$folder/munge/munged.pid" --log-file="$folder/munge/log" --seed-file="$folder/munge/seed"

memory=$(awk '/MemTotal/ {print int($2 / 1024 * 0.9)}' /proc/meminfo)
sed -e "s|@HOST@|$(hostname -s)|" -e "s|@CPUS@|$(nproc)|" -e "s|@MEMORY@|$memory|" -e "s|@FOLDER@|$folder|" \
    "$project/tests/cluster/slurm.conf" > "$folder/slurm.conf"
# In its usual place, because jobs see no variable that says another; an existing one is left alone.
ln -s "$folder/slurm.conf" "$conf"
slurmctld
sleep 2
slurmd
until [ "$(sinfo --noheader --format %t)" = idle ]; do sleep 1; done
echo "daemons: $((SECONDS - started)) s"

study() {
    mkdir "$folder/$1"
    cp -r "$project"/{Snakefile,workflow,config,profiles} "$folder/$1"
    cd "$folder/$1"
    started=$SECONDS
    PYTHONPATH=$project "$folder/venv/bin/python" -m snakemake --configfile config/small.yaml "${@:2}"
    echo "$1 run: $((SECONDS - started)) s"
}
study local --cores "$(nproc)"
# Without accounting, Slurm's own queue says what has become of a job.
study cluster --workflow-profile profiles/slurm --default-resources slurm_partition=main --slurm-no-account \
    --slurm-status-command squeue --slurm-init-seconds-before-status-checks 1 --seconds-between-status-checks 5 \
    --latency-wait 5
diff --recursive --exclude logs "$folder/local/results" "$folder/cluster/results"
squeue --noheader --states all --format %j | sort | uniq --count
echo "the cluster's results are those of the local run, byte for byte; in all $((SECONDS - begun)) s"
