"""A TrainingJob in which most fields are set, and a short one: what manifests and objects are bent from."""

from __future__ import annotations

from typing import Any

_TRAINER = {
    "name": "trainer",
    "ports": [{"name": "x", "containerPort": 8000, "protocol": "TCP"}],
    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    "securityContext": {"capabilities": {"drop": ["ALL"]}},
    "env": [{"name": "SEED", "value": "1"}],
}
SHORT: dict[str, Any] = {"workers": 2, "image": "train:1", "command": ["python", "train.py"]}
LONG: dict[str, Any] = SHORT | {
    "args": ["--lr", "0.1"],
    "env": [
        {"name": "A", "value": "1"},
        {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    ],
    "workingDir": "/src",
    "resources": {"limits": {"memory": "64Gi", "cpu": 4}, "requests": {"cpu": "500m"}},
    "gpusPerWorker": 2,
    "processesPerWorker": 2,
    "launcher": "PerRank",
    "agentPython": "/usr/bin/python3",
    "sharedMemory": "8Gi",
    "shardCache": "200Gi",
    "template": {
        "metadata": {"labels": {"team": "a"}, "annotations": {"b": "c"}},
        "spec": {
            "containers": [_TRAINER, {"name": "sidecar", "image": "x:1"}],
            "initContainers": [{"name": "first", "image": "x:1"}],
            "volumes": [{"name": "data", "emptyDir": {}}],
            "nodeSelector": {"disk": "ssd"},
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "restartPolicy": "Never",
        },
    },
    "checkpoint": {
        "volume": {"persistentVolumeClaim": {"claimName": "c"}},
        "path": "runs/a",
        "everySteps": 20,
        "everySeconds": 60,
        "keep": 3,
        "signing": {"secretName": "keys"},
    },
    "resume": {"policy": "Step", "step": 5},
    "recovery": {
        "maxFailures": 4,
        "windowSeconds": 600,
        "startSeconds": 60,
        "hangSeconds": 30,
        "lostSeconds": 5,
        "fenceSeconds": 60,
        "selfFence": True,
        "drainSeconds": 10,
        "noProgressLimit": 3,
        "start": "Fork",
        "exitCodes": [{"codes": [3, 4], "action": "Fail"}],
    },
    "strategy": {
        "parallelism": {"replicate": 2, "shard": 2},
        "sharding": "Gradients",
        "precision": "BFloat16",
        "batch": {"globalSamples": 64, "microSamples": 8, "balance": True, "prefetch": 4},
        "learningRate": {"scaling": "Linear", "baseBatch": 32, "warmupSteps": 10},
        "activationCheckpointing": "Selective",
    },
    "suspend": False,
    "restartedAt": "2026-11-20T10:00:00Z",
    "activeDeadlineSeconds": 3600,
    "ttlSecondsAfterFinished": 60,
    "cleanPodPolicy": "All",
}
SERVED: dict[str, Any] = SHORT | {
    "strategy": {
        "sync": {
            "type": "ParameterServer",
            "parameterServer": {"servers": 2, "mode": "BoundedStaleness", "staleness": 2, "resources": {}},
        },
    },
}
SPECS = (SHORT, LONG, LONG, SERVED)
