"""What a worker alone has and its loss is made with is found in a script's text; what is harmless is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from malletrain.script_check import loss_sources as module
from malletrain.script_check.loss_sources import (
    COLLECTION,
    DIVIDED_LOSS,
    LENGTH,
    NUMBER,
    SAMPLES_RATE,
    SCALED_GRADIENTS,
    SCALED_RATE,
    SCALED_SCHEDULE,
    SIZE,
)

ROOT = Path(__file__).parents[2]


def loss_sources(text: str) -> dict[str, int]:
    """Of all functions together."""
    return {what: line for found in module.loss_sources(text).values() for what, line in found.items()}


LOOP = """
for epoch in s.epochs(3):
    for x, y in s.batches():
        with s.step():
            {body}
"""

WEIGHTS = {
    "ratio": "a, b = f(x), g(x); w = a.item() / b.item(); loss = a + w * b; loss.backward()",
    "inline": "a, b = f(x), g(x); (a + b * (a.item() / b.item())).backward()",
    "float": "loss_a, b = f(x), g(x); w = float(loss_a.detach()); loss = w * b; loss.backward()",
    "through math": "a = f(x); w = math.exp(-a.item()); loss = a * w; scaler.scale(loss).backward()",
    "count": "n = mask.sum().item(); loss = (f(x) * mask).sum() / n; loss.backward()",
    "attribute": "self.w = 0.9 * self.w + 0.1 * f(x).item(); loss = self.w * g(x); loss.backward()",
    "list": "ws = [each.item() for each in losses]; sum(w * l for w, l in zip(ws, losses)).backward()",
    "running": "w = (f(x).detach() / mean).clamp(max=2); loss = (w * f(x)).mean(); loss.backward()\n"
    "            mean = 0.9 * mean + 0.1 * f(x).mean().item()",
    "running tensor": "loss = f(x)\n            if mean is None: mean = loss.detach()\n"
    "            (loss / mean).backward(); mean = 0.9 * mean + 0.1 * loss.detach()",
    "limit": "loss = f(x)\n            if loss > 1.0:\n                loss = 2 * loss\n            loss.backward()",
    "decision": "a = f(x)\n            if a.item() > 1:\n                a = 2 * a\n            a.backward()",
}

HARMLESS = {
    "printed": "loss = f(x); loss.backward(); total += loss.item(); print(total)",
    "agreed": "loss = f(x) * w; loss.backward(); w = s.agree(loss.item())",
    "trimmed": "k = lengths.max().item(); loss = f(x[:, :k]); loss.backward()",
    "annealed": "beta = min(1.0, s.steps_done / 100); loss = f(x) + beta * g(x); loss.backward()",
    "parts": "losses = []\n            for z in x.split(8): losses.append(f(z))\n            sum(losses).backward()",
    "detached term": "loss = f(x); loss = loss + g(x).detach().mean(); loss.backward()",
    "switched": "loss = f(x)\n            if loss_weight > 0: loss = loss + g(x)\n            loss.backward()",
    "figures by size": "loss = f(x); loss.backward(); print(loss.item() / s.size); total /= s.size",
    "size of an array": "loss = f(x) / rows.size; loss.backward()",
    "rate by step": "group['lr'] = base / (1 + s.steps_done); loss = f(x); loss.backward()",
    "divided by its length": "n = len(x); loss = f(x).sum() / n; loss.backward()",
    "share of a part": "for z in x.split(8): (f(z) * len(z) / len(x)).backward()",
    "weight of a penalty": "loss = f(x) + s.batch_size / len(dataset) * kl; loss.backward()",
    "epochs by a loader": "group['lr'] = base * 0.5 ** (s.steps_done // len(loader)); f(x).backward()",
    "rate by all samples": "group['lr'] = rate(s.samples_done / len(dataset)); f(x).backward()",
    "agreed count": "seen += s.agree(len(x), 'sum'); group['lr'] = rate(seen); f(x).backward()",
    "history": "loss = f(x); loss.backward(); history.append(loss.item()); print(sum(history))",
}


BY_SIZE = {
    "(f(x) / s.size).backward()": DIVIDED_LOSS,
    "loss = f(x); (loss / dist.get_world_size()).backward()": DIVIDED_LOSS,
    "loss = f(x) * s.size / n; loss.backward()": SIZE,
    "f(x).backward()\n            for p in parameters: p.grad /= s.size": SCALED_GRADIENTS,
    "f(x).backward()\n            for p in parameters: p.grad.data.div_(float(s.size))": SCALED_GRADIENTS,
    "f(x).backward()\n            for p in parameters: p.grad = p.grad * s.size": SCALED_GRADIENTS,
    "group['lr'] = 0.1 * s.size; f(x).backward()": SCALED_RATE,
}


@pytest.mark.parametrize("body", BY_SIZE)
def test_what_the_number_of_workers_scales_is_found(body: str) -> None:
    assert set(loss_sources(LOOP.format(body=body))) == {BY_SIZE[body]}


BY_LENGTH = {
    "(f(x) * len(x) / 64).backward()": LENGTH,
    "n = x.shape[0]; loss = f(x) + n / len(dataset) * kl; loss.backward()": LENGTH,
    "beta = x.size(0) / len(dataset); loss = f(x) + beta * kl; loss.backward()": LENGTH,
    "group['lr'] = 0.1 * len(x) / 64; f(x).backward()": SAMPLES_RATE,
    "seen += len(y); m = rate(seen)\n            for g in groups: g['lr'] = m\n            f(x).backward()": (
        SAMPLES_RATE
    ),
    "self.tokens += (y >= 0).sum(); group['lr'] = rate(self.tokens); f(x).backward()": SAMPLES_RATE,
    "adjust(optimizer, seen); seen += len(x); f(x).backward()": SAMPLES_RATE,
}


@pytest.mark.parametrize("body", BY_LENGTH)
def test_what_the_number_of_own_samples_scales_is_found(body: str) -> None:
    text = "def adjust(optimizer, seen):\n    for group in optimizer.param_groups:\n        group['lr'] = 1 / seen\n"
    assert set(loss_sources((text if "adjust" in body else "") + LOOP.format(body=body))) == {BY_LENGTH[body]}


BEFORE = {
    "world = int(os.environ['WORLD_SIZE'])\noptimizer = SGD(model.parameters(), lr=0.1 * world)": SCALED_RATE,
    "lr = 0.1 * dist.get_world_size()\noptimizer = SGD(model.parameters(), lr=lr)": SCALED_RATE,
    "n = max(1, int(os.getenv('SLURM_NTASKS', 1)))\nsteps = len(data) // (64 * n)\n"
    "scheduler = CosineAnnealingLR(optimizer, steps)": SCALED_SCHEDULE,
    "world_size = 2\nscheduler = get_cosine_schedule(optimizer, steps=99 // world_size)": SCALED_SCHEDULE,
}


@pytest.mark.parametrize("text", BEFORE)
def test_rates_and_schedules_that_are_made_by_the_number_of_workers_are_found(text: str) -> None:
    loop = LOOP.format(body="f(x).backward()")
    assert set(loss_sources(f"{text}\n{loop}")) == {BEFORE[text]}
    grows = "s = elastic.Session(model, optimizer, data, batch_size=64 * int(os.environ['WORLD_SIZE']))"
    assert loss_sources(f"{text}\n{grows}\n{loop}") == {}


def test_a_switch_by_the_number_of_workers_is_no_number_of_them() -> None:
    text = (
        "args.distributed = dist.get_world_size() > 1\n"
        "loader = DataLoader(data, sampler=sampler(data, args.distributed))\n"
        "scheduler = CycleScheduler(optimizer, len(loader))"
    )
    assert loss_sources(f"{text}\n{LOOP.format(body='f(x).backward()')}") == {}


@pytest.mark.parametrize("name", WEIGHTS)
def test_numbers_of_a_part_of_the_batch_are_found(name: str) -> None:
    assert set(loss_sources(LOOP.format(body=WEIGHTS[name]))) == {NUMBER}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_is_harmless_is_not(name: str) -> None:
    assert loss_sources(LOOP.format(body=HARMLESS[name])) == {}


def test_a_divisor_that_the_session_was_told_is_right() -> None:
    text = LOOP.format(body="loss = (f(x) * mask).sum() / n; loss.backward()")
    text = text.replace("with s.step()", "n = mask.sum().item()\n        with s.step(weight=n)")
    assert loss_sources(text) == {}
    assert set(loss_sources(text.replace("weight=n", ""))) == {NUMBER}


def test_a_weight_in_a_function_is_found() -> None:
    text = "def mix(a, b):\n    w = a.item() / b.item()\n    return a + w * b\n"
    text += LOOP.format(body="loss = mix(f(x), g(x)); loss.backward()")
    assert loss_sources(text) == {NUMBER: 2}


def test_replay_buffers_are_found() -> None:
    body = "buffer.append(x); rows = random.sample(buffer, 8); loss = f(torch.stack(rows)); loss.backward()"
    assert loss_sources("buffer = deque(maxlen=100)" + LOOP.format(body=body)) == {COLLECTION: 5}
    memory = "memory = ReplayMemory(1000)\ndef learn():\n    rows = memory.sample(8)\n    loss = f(rows)\n"
    memory += "    loss.backward()\n" + LOOP.format(body="memory.push(x); learn()")
    assert loss_sources(memory) == {COLLECTION: 10}


def test_rollouts_that_a_step_empties_are_no_replay_buffer() -> None:
    text = "rewards = []" + LOOP.format(body="rewards.append(f(x)); sum(rewards).backward(); rewards.clear()")
    assert loss_sources(text) == {}
    assert loss_sources(text.replace("rewards.clear()", "del rewards[:]")) == {}


def test_no_example_of_ours_has_any() -> None:
    for path in (ROOT / "examples").rglob("*.py"):
        assert loss_sources(path.read_text()) == {}, path


def test_functions_are_told_apart() -> None:
    text = "def one(f, x):\n    a = f(x)\n    (a * a.item()).backward()\n\ndef two(f, x):\n    f(x).backward()\n"
    assert module.loss_sources(text) == {1: {NUMBER: 3}}
