"""The command line of `ropeteam`.

main.py       the commands; each imports its modules when it runs
run.py        `run`: a cluster, an operator and one job; localstack.py: the first two
submit.py     `submit`: a job and its folder, into any cluster
doctor.py     `doctor`: reads what core/doctor evaluates
planning/     `plan`
show/         views of a job: `watch`, `logs`, `snapshot`, `explain`
manifest/     manifests and folders, read and brought into a cluster
connect.py    the cluster that a command connects to
complete.py   completion of job names in a shell
asyncrun.py   runs a command's coroutine until it ends or is interrupted
errors.py     errors: one sentence with the next step
"""
