rule simulate:
    output:
        "results/{experiment}/trials/{cell}/{block}.parquet",
    log:
        "results/logs/{experiment}/{cell}/{block}.log",
    group:
        "simulate"
    resources:
        mem_mb=1000,
        runtime="10m",
    params:
        # What the trials depend on, as canonical text: only a change of either re-runs the job.
        scenarios=lambda wildcards: job_of(wildcards).arguments,
        model=model_digest(),
    shell:
        "python -m kvsim run {params.scenarios} --output {output:q} > {log:q} 2>&1"
