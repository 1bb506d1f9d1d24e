"""The first process of a worker pod: starts, watches and reaps ranks; standard library only, never torch.

    main.py          the loop: events in, effects out
    machine/         the state machine: decisions (pure)
    link.py          the connection to the coordinator
    pod.py           the agent's resources in its pod: ranks, stores, the zygote and the disk
    processes/       ranks, stores and the zygote: started, watched and reaped
    script/          code that runs in the job's interpreter
    checkpoints.py   claim, manifests and pruning, on disk; executor.py: a thread for calls that may block
    preflight.py     checks before anything is started
    http.py          GET /metrics
    log.py           the agent's own log
    pack.py          the agent as one file, for images without ropeteam_trainer

The job's command is interpreted in ../launchers.
"""
