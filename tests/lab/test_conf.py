"""The text of slurm.conf, without a cluster."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.lab.accounting import association_commands, slurmdbd_conf
from scripts.lab.conf import (
    SCHEDULER_PARAMETERS,
    Host,
    LabConfig,
    NodeAddresses,
    cluster_name,
    gres_conf,
    slurm_conf,
)
from scripts.lab.errors import UsageError
from scripts.lab.layout import LONGEST_DIRECTORY, Layout

LAYOUT = Layout(Path("/srv/lab"))
HOST = Host("node", "alice")


def text_of(config: LabConfig) -> str:
    return slurm_conf(config, LAYOUT, tuple(range(20000, 20000 + config.port_count)), HOST)


def values_of(config: LabConfig) -> dict[str, str]:
    lines = [line for line in text_of(config).splitlines() if not line.startswith(("NodeName", "PartitionName"))]
    return dict(line.split("=", 1) for line in lines)


@pytest.mark.parametrize("parameters", SCHEDULER_PARAMETERS.values())
def test_no_profile_defers_by_accident(parameters: str) -> None:
    """Slurm takes any parameter that holds the word, such as defer_batch=0, for `defer`."""
    assert "defer" not in parameters


def test_site_is_as_sites_run() -> None:
    site = values_of(LabConfig(profile="site"))
    for parameter in ("bf_interval=30", "bf_max_job_test=100", "default_queue_depth=100", "sched_interval=60"):
        assert parameter in site["SchedulerParameters"].split(",")
    assert site["KillWait"] == "30"
    assert (site["Prolog"], site["Epilog"]) == ("/srv/lab/scripts/prolog", "/srv/lab/scripts/epilog")
    fast = values_of(LabConfig())
    assert "bf_interval=1" in fast["SchedulerParameters"].split(",")
    assert fast["KillWait"] == "5"
    assert "Prolog" not in fast
    assert "Epilog" not in values_of(LabConfig(profile="site", epilog_s=0))


def test_partitions_are_those_of_the_contract() -> None:
    partitions = {
        line.split()[0]: line for line in text_of(LabConfig(grace_s=7)).splitlines() if line.startswith("Partition")
    }
    batch, harvest = partitions["PartitionName=batch"], partitions["PartitionName=harvest"]
    assert "PriorityTier=100 " in batch
    assert "PreemptMode=OFF" in batch
    assert "Default=YES" in batch
    for part in ("PriorityTier=1 ", "PreemptMode=REQUEUE", "GraceTime=7", "MaxTime=01:00:00"):
        assert part in harvest


def partitions_of(config: LabConfig) -> dict[str, str]:
    lines = [line for line in text_of(config).splitlines() if line.startswith("PartitionName=")]
    return {line.split()[0].partition("=")[2]: line for line in lines}


def test_main_tiers_are_partitions_that_the_global_preempt_mode_counts_for() -> None:
    partitions = partitions_of(LabConfig(main_tiers=(20, 10)))
    assert list(partitions) == ["batch", "batch-10", "harvest"]
    assert "PriorityTier=20 " in partitions["batch"]
    assert "Default=YES" in partitions["batch"]
    assert "PriorityTier=10 " in partitions["batch-10"]
    assert not any("PreemptMode" in partitions[name] for name in ("batch", "batch-10"))


def test_a_site_before_malletrain_preempts_nothing_and_has_no_harvest() -> None:
    config = LabConfig(harvest=False, main_tiers=(20, 10), users=True, accounting=True)
    assert list(partitions_of(config)) == ["batch", "batch-10"]
    assert "Preempt" not in text_of(config)
    assert "harvest" not in text_of(config) + "".join(association_commands("lab", config, "root"))


def test_every_node_has_a_port_of_its_own() -> None:
    config = LabConfig(nodes=40, gpus=4, node_attributes=((3, "Weight=9 Features=old"),))
    lines = [line for line in text_of(config).splitlines() if line.startswith("NodeName")]
    ports = {line.split("Port=")[1].split()[0] for line in lines}
    assert len(lines) == len(ports) == 40
    assert not ports & {"20000", "20001"}
    assert all("Gres=gpu:4" in line for line in lines)
    assert lines[3].endswith("Weight=9 Features=old")


def test_settings_replace_append_and_add() -> None:
    config = LabConfig(
        settings=(("killwait", "9"), ("SchedulerParameters+", "bf_max_job_part=50"), ("Licenses", "a:1"))
    )
    values = values_of(config)
    assert values["KillWait"] == "9"
    assert values["SchedulerParameters"] == SCHEDULER_PARAMETERS["fast"] + ",bf_max_job_part=50"
    assert values["Licenses"] == "a:1"
    assert values_of(LabConfig(settings=(("Licenses+", "a:1"),)))["Licenses"] == "a:1"


@given(st.text(min_size=1), st.text())
def test_no_setting_breaks_out_of_its_line(key: str, value: str) -> None:
    try:
        config = LabConfig(settings=((key, value),))
    except UsageError:
        return
    plain = text_of(LabConfig()).count("\n")
    assert text_of(config).count("\n") in (plain, plain + 1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"nodes": 0},
        {"nodes": 10000},
        {"nodes": 100000, "controller_only": True},
        {"settings": (("Node Name", "x"),)},
        {"settings": (("PartitionName", "x"),)},
        {"settings": (("KillWait", "1\nSlurmUser=bob"),)},
        {"files": (("../x.conf", ""),)},
    ],
)
def test_wrong_values_are_named(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=r"\w+: .+"):
        LabConfig(**wrong)  # type: ignore[arg-type]


def test_pretended_gpus_have_a_file_each() -> None:
    assert "File=/srv/lab/devices/gpu[0-3]" in gres_conf(LabConfig(gpus=4), LAYOUT, device_nodes=True)
    assert "File=/dev/tty[0-1]" in gres_conf(LabConfig(gpus=2), LAYOUT, device_nodes=False)


@pytest.mark.parametrize("bad", ["/tmp/" + "x" * LONGEST_DIRECTORY, "/tmp/a b", "/tmp/a#b", "/tmp/a\nb", "/tmp/a,b"])
def test_paths_that_slurm_cannot_take_are_refused(bad: str) -> None:
    with pytest.raises(UsageError):
        Layout.of(bad)


def test_cluster_names_are_lower_case_words() -> None:
    assert cluster_name(Layout(Path("/tmp/My Lab-1"))) == "lab_my_lab_1"
    assert len(cluster_name(Layout(Path("/tmp/" + "x" * 60)))) <= 40


def test_the_daemons_user_coordinates_the_harvest_account() -> None:
    with_users = association_commands("lab", LabConfig(users=True), "root")
    assert "add coordinator account=harvest name=malletrain" in with_users
    assert "add coordinator account=harvest name=carol" in association_commands("lab", LabConfig(), "carol")
    assert not any("add user" in line for line in association_commands("lab", LabConfig(), "root"))


def test_the_database_is_reached_by_socket_alone() -> None:
    text = slurmdbd_conf(LAYOUT, 20001, "root", "secret")
    assert "StorageHost=localhost\n" in text
    assert "StoragePort" not in text


def test_nodes_with_addresses_of_their_own_are_named_by_them() -> None:
    text = text_of(LabConfig(nodes=2, addresses=NodeAddresses("10.0.0.1", ("10.0.0.10", "10.0.0.11"), ("/a", "/b"))))
    assert "SlurmctldHost=node(10.0.0.1)" in text.splitlines()
    assert re.findall(r"^NodeName=.* NodeAddr=(\S+)", text, re.MULTILINE) == ["10.0.0.10", "10.0.0.11"]


def test_daemons_that_others_must_reach_do_not_bind_the_loopback_interface() -> None:
    addresses = NodeAddresses("10.0.0.1", ("10.0.0.10",), ("/a",))
    own = Host("node", "alice", loopback=True)
    bound = "CommunicationParameters"
    assert bound in slurm_conf(LabConfig(nodes=1), LAYOUT, (1, 2, 3), own)
    assert bound not in slurm_conf(LabConfig(nodes=1, addresses=addresses), LAYOUT, (1, 2, 3), own)


@pytest.mark.parametrize("config", [{"nodes": 3}, {"nodes": 2, "controller_only": True}])
def test_addresses_must_be_those_of_the_nodes(config: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="addresses"):
        LabConfig(**config, addresses=NodeAddresses("10.0.0.1", ("10.0.0.10", "10.0.0.11"), ("/a", "/b")))
