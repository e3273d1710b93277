"""What is known of a job's scalability, as rows for people. Pure."""

from malletrain.decide.demand import expected_curve, profile_of
from malletrain.decide.rules import Rules
from malletrain.domain.job import JobView
from malletrain.learn.advisor import JobKnowledge
from malletrain.wire.rows import ProfileRow, SizeRow


def profile_row(view: JobView, known: JobKnowledge | None, advice: str, rules: Rules) -> ProfileRow:
    """`known` is None where nothing is learnt of the job: its curve was given, or it is over."""
    job = view.job
    profile = profile_of(view, rules).value
    took = view.costs
    costs = {
        "start": took.start_s, "activation": took.activate_s, "grow": took.grow_s, "shrink": took.shrink_s,
        "loss": took.loss_s,
    }  # fmt: skip
    if known is None or known.fit is None:
        points = expected_curve(view, known or JobKnowledge(), rules).points if job.given_curve is not None else ()
        given = tuple(SizeRow(n, rate, rate, rate) for n, rate in points)
        ignored = {} if known is None else dict(known.ignored)
        return ProfileRow(job.id, profile, given, ignored=ignored, next=advice, costs=costs)
    fit = known.fit
    windows = known.windows
    sizes = sorted(set(windows) | {n for n, _ in fit.curve(job.max_nodes).points})
    return ProfileRow(
        job=job.id, profile=profile,
        sizes=tuple(SizeRow(e.nodes, e.rate, e.low, e.high, windows.get(e.nodes, 0)) for e in fit.at(sizes)),
        family=fit.family, noise=fit.noise, probe_nodes=known.probe.nodes if known.probe else None,
        ignored=dict(known.ignored), next=advice, costs=costs, node_class=fit.node_class,
    )  # fmt: skip
