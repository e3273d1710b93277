"""Steps of a kind that has not been examined are examined when they come again."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from malletrain.elastic.errors import ElasticError
from malletrain.elastic.guards.script_guards import ScriptGuards
from malletrain.elastic.guards.split_trial import trials
from malletrain.elastic.guards.step_forms import MAX_EXPECTED, MAX_FORMS, StepForms, form_of
from malletrain.elastic.session import Session
from tests.waiting import wait_until


def examined_steps(forms: list[int], always: set[int]) -> list[int]:
    """Which of these steps are examined where those in `always` are, and those that are expected."""
    known, found = StepForms(), []
    for step, form in enumerate(forms):
        expected = known.expects(step)
        if expected:
            known.take()
        if expected or step in always:
            found.append(step)
        known.made(step, form, examined=step in found)
    return found


def test_a_form_that_was_met_twice_is_expected_once_more() -> None:
    every_16th = [2 if step % 16 == 15 else 1 for step in range(100)]
    assert examined_steps(every_16th, {0, 1, 4, 9, 20, 41}) == [0, 1, 4, 9, 20, 41, 47]
    from_30_on = [2 if step >= 30 else 1 for step in range(100)]
    assert examined_steps(from_30_on, {0, 1, 4, 9, 20, 41}) == [0, 1, 4, 9, 20, 32, 41]
    assert examined_steps([1] * 100, {0}) == [0]


def test_a_step_without_a_verdict_is_not_examined() -> None:
    known = StepForms()
    known.made(0, 1, examined=True)
    known.made(1, 2, examined=True)
    known.made(2, 1, examined=True)
    known.not_examined(1)
    known.not_examined(2)
    for step in (3, 4):
        known.made(step, 2, examined=False)
    assert known.expects(5)
    known.made(5, 1, examined=False)
    known.made(6, 1, examined=False)
    assert not known.expects(7), "the first of its steps was examined"


def test_graphs_that_follow_from_the_samples_are_not_waited_for() -> None:
    assert examined_steps(list(range(300)), {0}) == [0]
    often = [step % (MAX_FORMS // 2) for step in range(10 * MAX_FORMS)]
    assert len(examined_steps(often, set())) == MAX_EXPECTED


def test_forms_tell_the_terms_of_a_loss() -> None:
    weight = torch.randn(3, requires_grad=True)
    one, other = weight.square().mean(), weight.square().mean() + weight.std()
    assert form_of([one.grad_fn]) == form_of([weight.square().mean().grad_fn])
    assert form_of([one.grad_fn]) != form_of([other.grad_fn])
    assert form_of([one.grad_fn], form_of([one.grad_fn])) != form_of([one.grad_fn]), "of two backward passes"


def train(*, noise: bool = False) -> Session:
    """Six epochs of eight steps. Each twelfth step has a term of its own, and is none that is always tried."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    s = Session(model, optimizer, TensorDataset(torch.randn(64, 6), torch.arange(64) % 3), batch_size=8)
    for _ in s.epochs(6):
        for x, y in s.batches():
            with s.step():
                optimizer.zero_grad()
                out = model(x)
                loss = functional.cross_entropy(out, y)
                if s.steps_done % 12 == 11 and noise:
                    loss = loss + (model(x + 0.1 * torch.randn_like(x)) - out).square().mean()
                elif s.steps_done % 12 == 11:
                    loss = loss + out.std(0).mean()
                loss.backward()
                optimizer.step()
            wait_until(lambda: has_verdict(s), 20, "the end of the copies that try a step")
    s.finish()
    return s


def has_verdict(s: Session) -> bool:
    """Whether no step is being tried. (Steps here are shorter than it takes to try one.)"""
    s._runtime.judge_trial(0.0)
    under_way = s._runtime.trials._trial
    return under_way is None or not under_way.verdicts


def test_what_every_twelfth_step_does_is_not_called_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "MAX_BYTES", 0)
    assert "a statistic over the samples" in train().equality
    assert "draws random numbers" in train(noise=True).equality


def test_what_every_twelfth_step_does_is_tried_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no rule looks."""
    monkeypatch.setattr(trials, "MAX_TIME_SHARE", 1e-9)
    monkeypatch.setattr(ScriptGuards, "_looks_at_operations", False)
    with pytest.raises(ElasticError, match="step 35 was tried with one worker and with two"):
        train()
