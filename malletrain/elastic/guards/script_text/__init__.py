"""Guards that read the script's text, which shows before a step what none has done yet.

`carried_names` finds variables that steer the training from step to step, `loss_sources` what a worker alone has and
its loss is made with, `script_writes` files that every worker would write, `unseeded_draws` random numbers that
differ between workers, and `own_collections` what a worker fills with its part of an evaluation. `script_scopes` are
the functions of a text.
"""
