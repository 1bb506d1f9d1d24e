"""A job's life from the first look to the last, in a small Kubernetes."""

from tests.builders import a_job, a_running_job
from tests.core.fake_cluster import FakeCluster


def test_a_job_starts_runs_and_completes():
    cluster = FakeCluster(a_job(workers=2))
    cluster.play(until=lambda seen: seen.status.state == "Running")
    assert cluster.made == ["mnist-coordinator-1", "mnist-0-1", "mnist-1-1"]
    cluster.finished = True
    cluster.play(until=lambda seen: seen.status.state == "Complete")
    cluster.play(until=lambda seen: not seen.pods)
    assert cluster.observe().status.finished
    assert cluster.observe().service is None


def test_a_running_job_is_left_alone():
    cluster = FakeCluster(a_running_job())
    assert cluster.scene.status.state == "Running"
