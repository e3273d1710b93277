"""Policy `milp`: any linear side constraint, by pricing and HiGHS."""

from malletrain.sizing.policies.milp.milp_policy import Milp

__all__ = ["Milp"]
