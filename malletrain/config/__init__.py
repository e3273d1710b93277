"""The daemon's configuration: one TOML file, checked whole, every fault named at once with its place.

Packages below `daemon` and `cli` never see it: they get plain values. It is in the lowest layer, with `domain`, so
its error has no base there; `ConfigError` carries the same `exit_status`.
"""

from malletrain.config.load import REPLAY_TABLE as REPLAY_TABLE
from malletrain.config.load import SYSTEM_FILE as SYSTEM_FILE
from malletrain.config.load import ConfigError as ConfigError
from malletrain.config.load import faults_of as faults_of
from malletrain.config.load import load as load
from malletrain.config.load import load_for_user as load_for_user
from malletrain.config.load import load_or_defaults as load_or_defaults
from malletrain.config.load import parse as parse
from malletrain.config.load import place_in as place_in
from malletrain.config.load import user_state_dir as user_state_dir
from malletrain.config.sections import SECTIONS as SECTIONS
from malletrain.config.sections import TABLES as TABLES
from malletrain.config.sections import BudgetSection as BudgetSection
from malletrain.config.sections import Config as Config
from malletrain.config.sections import LimitSection as LimitSection
from malletrain.config.sections import Section as Section
