"""What NCCL and torch read from the environment before a GPU is used. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping

from malletrain.elastic.comm.addresses import interface_of

#: The daemon says which worker is lost. Torch's watchdog would end the process where a collective hangs for long, or
#: where a group is aborted because its world has changed.
WATCHDOG_OFF = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
}


def nccl_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables to add to a script's environment. What the site or the user has set stays.

    Where MALLETRAIN_ADDRESS names the address at which peers reach this node, NCCL is bound to its interface; else
    NCCL chooses, InfiniBand first.
    """
    added = {name: value for name, value in WATCHDOG_OFF.items() if name not in environ}
    address = environ.get("MALLETRAIN_ADDRESS", "")
    if address and "NCCL_SOCKET_IFNAME" not in environ:
        interface = interface_of(address)
        if interface:
            added["NCCL_SOCKET_IFNAME"] = f"={interface}"
    return added
