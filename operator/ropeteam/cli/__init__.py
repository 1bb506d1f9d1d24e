"""The command line of `ropeteam`.

main.py       the commands; what they need is imported when they run
run.py        `run`: a cluster, an operator and one job; localstack.py: the first two
submit.py     `submit`: a job and its folder, into any cluster
doctor.py     `doctor`: what is found, to be judged by core/doctor
planning/     `plan`
show/         what is shown of a job: `watch`, `logs`, `snapshot`, `explain`
manifest/     manifests and folders, read and brought into a cluster
connect.py    which cluster a command speaks to
complete.py   completion of job names in a shell
errors.py     what goes wrong is one sentence with the next step
demo.py       `make demo`
"""
