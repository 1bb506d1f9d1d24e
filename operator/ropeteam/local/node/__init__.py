"""The node of the local cluster.

kubelet.py     a PodWorker for each pod, events, logs
pod.py         the lifecycle of one pod
container.py   one container, and its process
podspec.py     from a container's spec to a command line of this machine
shim.py        the process above one container
volumes.py     volumes as folders
liveness.py    livenessProbe, as a kubelet runs it
services.py    a TCP proxy for each cluster address and port
"""
