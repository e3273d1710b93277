"""Sizing problems, plans of every policy, problems as LP text, curves fitted to samples: the commands' own output."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

from tests.corpus import doors
from tests.corpus.cases import Case, canonical

Json = dict[str, Any]

#: These take longer than all others together.
SLOW = ("lp", "matching")


def cases() -> Iterator[Case]:
    """Every policy on every problem, then faults, LP texts and fits."""
    problems = {f"plain-{n:02}": plain(n) for n in range(24)}
    problems |= {f"constrained-{n:02}": constrained(100 + n) for n in range(16)}
    problems |= {f"full-{n:02}": full(200 + n) for n in range(20)}
    policies = doors.policies()
    with doors.folder() as folder:
        for n, (name, problem) in enumerate(problems.items()):
            (folder / "problem.json").write_text(json.dumps(problem))
            for policy in policies:
                if policy in SLOW and n % (2 if "full" in name else 8):
                    continue
                done = doors.plan("problem.json", "--policy", policy)
                whole = policy == "auto" and name.endswith("0")
                yield Case(f"plan/{name}-{policy}", done.text, _words(done), whole)
        for n, (name, text) in enumerate(faults()):
            (folder / "problem.json").write_text(text)
            done = doors.malletrain("plan", "problem.json", "--policy", "no-such" if n == 0 else "auto")
            yield Case(f"plan/fault-{name}", done.text, done.err or _words(done))
        for name in ("plain-00", "plain-07", "constrained-02", "constrained-05", "full-03"):
            (folder / "problem.json").write_text(json.dumps(problems[name]))
            done = doors.malletrain("plan", "problem.json", "--policy", "lp", "--write-lp", "problem.lp")
            text = (folder / "problem.lp").read_text()
            yield Case(f"lp/{name}.lp", text, f"{len(text.splitlines())} lines", name == "constrained-05")
        for name, table in tables().items():
            (folder / "samples.csv").write_text(table)
            done = doors.malletrain("fit", "samples.csv", "--at", "1,2,3,8,24,100")
            words = f"{done.json['family']} {done.json['error_bound']:.4g}" if not done.status else done.err
            # The last digits of a fit differ between processors.
            text = canonical(done.json) if not done.status else done.text
            yield Case(f"fit/{name}", text, words, name == "amdahl")


def _words(done: doors.Done) -> str:
    if done.status:
        return done.err
    plan = done.json
    sizes = ",".join(map(str, plan["sizes"].values()))
    return f"{plan['status']} {plan['objective']:.6g} [{sizes}]"


def job(at: random.Random, name: str, most: int) -> Json:
    """A job with a curve of few points: straight, bending, falling at the end, or any at all."""
    top = at.randint(1, most)
    sizes = sorted(at.sample(range(1, most + 1), at.randint(1, min(4, most))))
    kind = at.choice(["straight", "bending", "falling", "any"])
    rate = at.choice([1.0, 10.0, 137.5])
    if kind == "straight":
        rates = {n: rate * n for n in sizes}
    elif kind == "bending":
        rates = {n: rate * n / (1 + 0.1 * n) for n in sizes}
    elif kind == "falling":
        rates = {n: rate * n * (1.4 - n / most) for n in sizes}
    else:
        rates = {n: round(at.uniform(0.5, 50), 2) for n in sizes}
    made: Json = {
        "id": name,
        "current": at.choice([0, 0, at.randint(0, most)]),
        "min": at.randint(0, min(2, top)),
        "max": top,
        "weight": at.choice([1, 1, 1, 0.5, 3]),
        "grow_s": at.choice([0, 0.3, 18]),
        "shrink_s": at.choice([0, 0.1, 12]),
        "activate_s": at.choice([0, 5, 40]),
        "throughput": {str(n): round(r, 6) for n, r in rates.items()},
    }
    if at.random() < 0.3:
        made["sizes"] = sorted(at.sample(range(1, most + 1), at.randint(1, min(4, most))))
    if at.random() < 0.4:
        made["remaining_samples"] = at.choice([500, 2e4, 1e6])
    return made


def plain(seed: int) -> Json:
    """Jobs and nodes."""
    at = random.Random(seed)
    most = at.choice([4, 8, 16])
    jobs = [job(at, f"j{i}", most) for i in range(at.randint(0 if seed == 3 else 1, 6))]
    if seed % 6 == 5:  # several that differ in nothing but the name
        jobs = [jobs[0] | {"id": f"j{i}"} for i in range(4)]
    return {
        "horizon_s": at.choice([60, 300, 600]),
        "nodes": at.randint(0 if seed == 4 else 1, 32),
        "value": at.choice(["elastic", "elastic", "bftrainer"]),
        "alpha": at.choice([0, 0, 0.5, 1, 2]),
        "jobs": jobs,
    }


def constrained(seed: int) -> Json:
    """With side constraints, which some cannot keep."""
    at, made = random.Random(seed), plain(seed)
    names = [each["id"] for each in made["jobs"]]
    limits: list[Json] = []
    if at.random() < 0.6:
        group = at.sample(names, at.randint(1, len(names)))
        limits.append({"name": "cap", "coefficients": dict.fromkeys(group, 1), "upper": at.randint(1, made["nodes"])})
    if at.random() < 0.5:
        watts = {name: round(at.uniform(0.2, 2), 2) for name in names}
        limits.append({"name": "power", "coefficients": watts, "upper": made["nodes"] * 0.7})
    if at.random() < 0.4:
        limits.append({"name": "share", "coefficients": {names[0]: 1}, "lower": at.randint(1, 3)})
    return made | {"constraints": limits}


def full(seed: int) -> Json:
    """With all that any policy asks for: batches, noise, classes, deadlines, budgets."""
    at, made = random.Random(seed), plain(seed)
    nodes = made["nodes"]
    for each in made["jobs"]:
        base = dict(each["throughput"])
        factors = {"32": 1.0, "64": 1.5, "128": 1.9}
        each["batches"] = {b: {n: round(r * f, 6) for n, r in base.items()} for b, f in factors.items()}
        each["noise_scale"] = at.choice([40, 400, 4000])
        each["synchronous"] = {
            "step_samples": at.choice([64, 256]),
            "exchange_s": at.choice([0, 0.1]),
            "class_rates": {"a100": round(at.uniform(20, 90), 1), "v100": round(at.uniform(10, 40), 1)},
        }
        each["remaining_samples"] = at.choice([500, 2e4, 1e6])
        if at.random() < 0.6:
            each["due"] = {"seconds": at.choice([600, 7200]), "samples": each["remaining_samples"]}
    names = [each["id"] for each in made["jobs"]]
    fast = at.randint(0, nodes)
    for _ in range(3):  # numbers that an earlier problem held: those that follow stay as they were
        at.randint(0, nodes)
    return made | {
        "classes": {"a100": fast, "v100": nodes - fast},
        "budgets": [{"name": "account x", "jobs": names[: 1 + len(names) // 2], "node_s": at.choice([600, 36000])}],
    }


def faults() -> Iterator[tuple[str, str]]:
    """Texts that are refused, or understood in part."""
    good: Json = {
        "horizon_s": 300,
        "nodes": 4,
        "jobs": [{"id": "a", "current": 1, "min": 1, "max": 4, "throughput": {"1": 10.0, "4": 30.0}}],
    }
    one = good["jobs"][0]

    def with_job(**more: object) -> str:
        return json.dumps(good | {"jobs": [one | more]})

    yield "policy", json.dumps(good)
    yield "empty", ""
    yield "half", json.dumps(good)[:40]
    yield "list", "[]"
    yield "constant", json.dumps(good).replace("300", "NaN")
    yield "doubled", '{"nodes": 1, "nodes": 2}'
    yield "deep", "[" * 100_000
    yield "no-jobs", json.dumps({"horizon_s": 1, "nodes": 1})
    yield "unknown-field", json.dumps(good | {"walltime": 1})
    yield "unknown-job-field", with_job(colour="red")
    yield "id", json.dumps(good | {"jobs": [one, one]})
    yield "nodes", json.dumps(good | {"nodes": -1})
    yield "nodes-text", json.dumps(good | {"nodes": "four"})
    yield "value", json.dumps(good | {"value": "profit"})
    yield "min-above-max", with_job(min=5)
    yield "weight", with_job(weight=-1)
    yield "size", with_job(sizes=[1.5])
    yield "rate", with_job(throughput={"1": -3})
    yield "no-rate", with_job(throughput={})
    yield "rate-key", with_job(throughput={"one": 3})
    yield "constraint", json.dumps(good | {"constraints": [{"coefficients": {"b": 1}, "upper": 2}]})
    yield "budget", json.dumps(good | {"budgets": [{"jobs": ["b"], "node_s": 2}]})
    yield "classes", json.dumps(good | {"classes": {"a100": 3}})


def tables() -> dict[str, str]:
    """Samples as CSV."""
    at = random.Random(7)

    def table(rates: dict[int, float], windows: int, noise: float) -> str:
        rows = [
            f"{n},{rate * (1 + noise * at.uniform(-1, 1)):.4f}" for n, rate in rates.items() for _ in range(windows)
        ]
        return "\n".join(["nodes,samples_per_s", *rows]) + "\n"

    sizes = (1, 2, 4, 8, 16)
    amdahl = {n: 100 / (0.05 + 0.95 / n) for n in sizes}
    return {
        "linear": table({n: 50.0 * n for n in sizes}, 1, 0.0),
        "amdahl": table(amdahl, 3, 0.02),
        "falling": table({1: 100, 2: 180, 4: 300, 8: 310, 16: 240}, 2, 0.01),
        "one-size": table({4: 333.0}, 5, 0.05),
        "two-sizes": table({2: 90.0, 6: 200.0}, 1, 0.0),
        "outliers": table(amdahl, 3, 0.02) + "4,9\n8,100000\n0,5\n-1,5\n2,nan\n",
        "nonsense": "nodes,samples_per_s\n0,1\n1,-5\n",
        "no-rows": "nodes,samples_per_s\n",
        "header": "nodes,rate\n1,2\n",
        "fields": "nodes,samples_per_s\n1,2,3\n",
        "number": "nodes,samples_per_s\n1,fast\n",
        "fraction": "nodes,samples_per_s\n1.5,3\n",
    }
