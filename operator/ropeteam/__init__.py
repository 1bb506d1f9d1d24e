"""The operator: Kubernetes in, Kubernetes out. It knows jobs and pods and never imports torch."""
