"""A real Kubernetes on one machine: control plane, nodes as network namespaces, our chart in it.

cluster.py            control plane and nodes together
controlplane.py       etcd, API server, controller manager, scheduler
node.py               kubelet, containerd and kube-proxy in a namespace
network.py            bridges and namespaces; networkpolicies.py: kube-router, which enforces policies
daemons.py            processes that outlive the command that started them
programs.py           programs of Kubernetes, built from Go modules
images.py             images of operator and trainer; oci.py: their layout; engine.py: `docker` in their place
pki.py                keys and kubeconfigs
site.py               the chart in a cluster, and jobs on it; foreign.py: on a cluster that is there already
falsecoordinator.py   a pod of a tenant that answers as a coordinator
prepare.py            all that tests need, or why they cannot run
"""
