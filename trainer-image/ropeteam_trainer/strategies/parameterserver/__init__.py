"""Parameter servers: ranks that keep the parameters and the optimizer, for workers that push gradients and
pull weights.

    ledger.py         which gradients count (pure); kept by the chief, the first server
    doublebuffer.py   tensors that change as a whole, in memory that outlives the process
    share.py          one server's part of the model and of the script's own optimizer
    flat.py           tensors in one piece of memory
    wire.py           messages and raw tensors over TCP; admission.py: who is let in
    service.py        what each server answers
    chief.py          what the first one answers and does beyond that: the ledger, checkpoints, the end
    role_server.py    what a server does in the place of training
    client.py         the other end; role_worker.py: what a worker does in the place of collectives
    discovery.py      which of the two a rank is, and where the servers are

Use them when workers differ in speed or come and go: a slow or dead worker does not hold the others
(asynchronous, or synchronous with backup workers), and no rank needs a collective.
Cost per step: each worker sends its gradient and receives the weights, 4P bytes each way; a server of S sends
and receives 4P/S for each worker. Two short messages to the chief.
Promises: a gradient is applied once on every server, or on none; what was answered survives the death of any
process (the state is in /dev/shm). With the pod it is lost: then all go back to the checkpoint.
Sources: Li et al., "Scaling Distributed Machine Learning with the Parameter Server", OSDI 2014; Dean et al.,
"Large Scale Distributed Deep Networks", NeurIPS 2012; and those named in ledger.py and share.py.
"""
