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
munge_key=

stop() {
    for daemon in slurmd slurmctld munged; do
        if [ -s "$folder/$daemon.pid" ]; then
            kill "$(cat "$folder/$daemon.pid")" 2>/dev/null || true
        fi
    done
    sleep 2
    rm -rf "$folder"
}
trap stop EXIT

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
chown munge: "$folder/munge"
[ -s /etc/munge/munge.key ] || mungekey --create
sed -e "s|@HOST@|$(hostname -s)|" -e "s|@CPUS@|$(nproc)|" -e "s|@FOLDER@|$folder|" \
    -e "s|@MEMORY@|$(awk '/MemTotal/ {print int($2 / 1024 * 0.9)}' /proc/meminfo)|" \
    "$project/tests/cluster/slurm.conf" > "$folder/slurm.conf"
export SLURM_CONF=$folder/slurm.conf
