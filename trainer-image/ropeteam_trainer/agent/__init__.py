"""The first process of a worker pod: starts, watches and reaps ranks; standard library only, never torch.

    main.py          the loop: events in, effects out
    machine/         what to do (pure)
    link.py          the connection to the coordinator
    pod.py           what an agent is to its pod: ranks, stores, the zygote and the disk
    processes/       ranks, stores and the zygote, and how they are started, watched and reaped
    script/          what runs in the job's interpreter
    checkpoints.py   manifests and pruning, on disk; lane.py: a thread for what may block
    preflight.py     what can be known to fail before anything is started
    http.py          GET /metrics
    log.py           the agent's own words
    pack.py          the agent as one file, for images that do not know us

What a job's command means stands in ../launchers.
"""
