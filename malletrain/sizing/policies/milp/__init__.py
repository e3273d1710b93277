"""Policy `milp`: any linear side constraint, by pricing and HiGHS."""
