"""The daemon's configuration: one TOML file, checked whole, every fault named at once with its place.

Packages below `daemon` and `cli` never see it: they get plain values. It is in the lowest layer, with `domain`, so
its error has no base there; `ConfigError` carries the same `exit_status`.
"""

from malletrain.config.faults import ConfigError, ConfigFault
from malletrain.config.load import (
    REPLAY_TABLE,
    SYSTEM_FILE,
    load,
    load_for_user,
    load_or_defaults,
    parse,
    user_state_dir,
)
from malletrain.config.sections import (
    SECTIONS,
    TABLES,
    BudgetSection,
    Config,
    LimitSection,
    Section,
    WebSection,
)

__all__ = [
    "REPLAY_TABLE",
    "SECTIONS",
    "SYSTEM_FILE",
    "TABLES",
    "BudgetSection",
    "Config",
    "ConfigError",
    "ConfigFault",
    "LimitSection",
    "Section",
    "WebSection",
    "load",
    "load_for_user",
    "load_or_defaults",
    "parse",
    "user_state_dir",
]
