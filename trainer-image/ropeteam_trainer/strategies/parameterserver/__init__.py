"""Parameter servers: ranks that keep the parameters and the optimizer, for workers that push gradients and
pull weights.

    ledger.py          decides which gradients are applied (pure); kept by the chief, the first server
    doublebuffer.py    tensors that are updated atomically, in memory that outlives the process
    share.py           one server's part of the parameters and of the script's own optimizer
    hyperparameters.py of the workers' optimizers, in messages
    flat.py            layout of tensors in one contiguous buffer; payloads.py: other values as bytes
    requests.py        requests and their answers, typed (pure)
    wire.py            messages and raw tensors over TCP, and the handshake of both sides before the first
    admission.py       a server's connections until their handshake is complete
    service.py         request handlers of each server
    chief.py           more handlers of the first one; chiefloop.py: its start, checkpoints, drain and end
    serverprogress.py  heartbeats and counters of a server
    client.py          the workers' client
    discovery.py       which ranks are servers, and their addresses

roles/server.py and roles/worker.py put them together for a rank.

Use them when workers differ in speed or come and go: a slow or dead worker does not hold the others
(asynchronous, or synchronous with backup workers), and no rank needs a collective.
Cost per step: each worker sends its gradient and receives the weights, 4P bytes each way; a server of S sends
and receives 4P/S for each worker. Two short messages to the chief.
Guarantees: a gradient is applied once on every server, or on none; answered updates survive the death of any
process (the state is in /dev/shm). They are lost with the pod: then all resume from the checkpoint.
Sources: Li et al., "Scaling Distributed Machine Learning with the Parameter Server", OSDI 2014; Dean et al.,
"Large Scale Distributed Deep Networks", NeurIPS 2012; and those named in ledger.py and share.py.
"""
