"""Real agents, no torch: commands that are more than a program and its words."""

from __future__ import annotations

from tests.agent.harness import a_plan, exit_of

FACTS = "import os, sys; print('sees', os.getcwd(), os.environ.get('A'), os.environ['RANK'], sys.argv)"


async def ended(pod, coordinator, *command, processes=1, **environment):
    pod.start(*command, **environment)
    coordinator.order(plan=a_plan(processes=processes))
    return await coordinator.wait_for(lambda r: r.plan and r.stopped)


async def test_a_simple_line_of_a_shell_starts_once_per_rank_in_its_folder(make_pod, coordinator):
    pod = make_pod(processes=2)
    (pod.folder / "deep").mkdir()
    line = f'set -e; cd deep && A="b c" python3 -c "{FACTS}" d'
    report = await ended(pod, coordinator, "bash", "-c", line, processes=2)
    assert report.launcher == "PerRank (python)"
    assert [rank.exit.reached_end for rank in report.ranks] == [True, True]
    for rank in "01":
        await pod.printed(f"[rank {rank}] sees {pod.folder}/deep b c {rank} ['-c', 'd']")


async def test_a_script_in_the_command_reports_its_error(pod, coordinator):
    report = await ended(pod, coordinator, "sh", "-c", "python3 - <<'END'\nraise KeyError(1)\nEND\n")
    assert exit_of(report).fingerprint == "KeyError at <stdin>:1"


async def test_what_a_login_shell_sets_reaches_the_ranks(pod, coordinator):
    (pod.folder / ".bash_profile").write_text("export A=profile\necho welcome\n")
    (pod.folder / "x.py").write_text(FACTS)
    command = ("bash", "-lc", "exec python3 x.py")
    report = await ended(pod, coordinator, *command, HOME=str(pod.folder))
    assert exit_of(report).reached_end
    await pod.printed(f"sees {pod.folder} profile 0 ['x.py']")


async def test_a_wrapper_that_fails_is_a_problem_at_once(pod, coordinator):
    (pod.folder / "conda").write_text("#!/bin/sh\necho no environment ml >&2; exit 3\n")
    (pod.folder / "conda").chmod(0o755)
    pod.start("conda", "run", "-n", "ml", "python3", "x.py", PATH=f"{pod.folder}:/usr/bin:/bin")
    coordinator.order(plan=a_plan())
    problem = (await coordinator.wait_for(lambda r: r.problem)).problem
    assert problem.reason.value == "CommandNotFound"
    assert "conda run -n ml fails: no environment ml" in problem.message


async def test_a_launcher_of_a_pod_receives_the_addresses_of_the_others(make_pod, coordinator):
    pod = make_pod(workers=2)
    (pod.folder / "composer").write_text('#!/bin/sh\necho store $TORCHELASTIC_USE_AGENT_STORE: "$@"\n')
    (pod.folder / "composer").chmod(0o755)
    report = await ended(pod, coordinator, "composer", "-v", "x.py", PATH=f"{pod.folder}:/usr/bin:/bin")
    assert report.launcher == "PerPod (composer, flags added)"
    fields = "--nproc 1 --world_size 2 --node_rank 0 --master_addr 127.0.0.1 --master_port 2"
    await pod.printed(f"store : {fields}")  # the port is the job's own on a loopback
