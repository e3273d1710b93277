"""The environment in which sbatch runs to submit more tasks."""

from __future__ import annotations

from malletrain.elastic.launch.array_resubmit import environment_outside_pilot


def test_new_tasks_inherit_the_cluster_but_no_variable_of_this_pilot() -> None:
    environ = {
        "SLURM_CONF": "/etc/slurm/slurm.conf",
        "SLURM_JOB_ID": "7",
        "SLURM_ARRAY_TASK_ID": "1",
        "SBATCH_ACCOUNT": "x",
        "MALLETRAIN_STEP_OF": "7",
        "PMI_RANK": "0",
        "PATH": "/usr/bin",
        "MUNGE_SOCKET": "/run/munge",
    }
    assert environment_outside_pilot(environ) == {
        "SLURM_CONF": "/etc/slurm/slurm.conf",
        "PATH": "/usr/bin",
        "MUNGE_SOCKET": "/run/munge",
    }
