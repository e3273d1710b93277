"""Which variables of a script carry something from step to step and steer the training."""

from __future__ import annotations

import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.script_check.carried_names import carried_names


def names(script: str) -> set[str]:
    found = carried_names(textwrap.dedent(script))
    return {each.name for scope in found.values() for each in scope}


STEERING = {
    "a counter that sets the rate": """
        it = 0
        for epoch in s.epochs(3):
            for x in s.batches():
                for group in optimizer.param_groups:
                    group["lr"] = rate(it)
                with s.step():
                    train(x)
                it += 1
        """,
    "a counter in other words": """
        it = 0
        for x in s.batches():
            it = it + 1
            schedule(it)
        """,
    "accumulation by the index of the batch": """
        for it, x in enumerate(s.batches()):
            with s.step():
                loss(x).backward()
                if (it + 1) % 4 == 0:
                    optimizer.step()
        """,
    "the best score so far": """
        it = 0
        for epoch in s.epochs(3):
            for x in s.batches():
                pass
            score = evaluate()
            if score > it:
                it = score
                torch.save(model, "best.pt")
        """,
    "the end after so many steps": """
        it = 0
        for x in s.batches():
            it += 1
            if it % 100 == 0:
                print(it)
                if it > options.most:
                    break
        """,
    "the best score so far, in one line": """
        it = 0
        for epoch in s.epochs(3):
            for x in s.batches():
                pass
            if score() > it:
                it = float(3)
        """,
    "the best by max": """
        it = 0
        for x in s.batches():
            it = max(it, f(x))
            if it > 3:
                break
        """,
    "patience": """
        it = 0
        for epoch in s.epochs(9):
            for x in s.batches():
                pass
            it += 1
            if it > 5:
                break
        """,
    "in a function": """
        def main():
            it = 0
            for x in s.batches():
                train(x, it)
                it += 1
        """,
    "the index of elastic.ddp's loader": """
        def train(model, loader):
            for it, x in enumerate(loader):
                model(x).backward()
                if it % 4:
                    optimizer.step()

        model, loader = elastic.ddp(model, optimizer, loader)
        for epoch in loader.epochs(3):
            train(model, loader)
        """,
    "a count beside elastic.ddp's loader": """
        model, loader = elastic.ddp(model, optimizer, loader)
        it = 0
        for epoch in loader.epochs(3):
            for x in loader:
                f(x, it).backward()
                it += 1
        """,
}


@pytest.mark.parametrize("script", STEERING.values(), ids=STEERING)
def test_a_variable_that_steers_is_found(script: str) -> None:
    assert names(script) == {"it"}


HARMLESS = {
    "progress": """
        for it, x in enumerate(s.batches()):
            train(x)
            if it % 100 == 0:
                print(f"step {it}")
        """,
    "progress of the main worker": """
        for it, x in enumerate(s.batches()):
            train(x)
            if s.is_main and it % 100 == 0:
                speed = it / 3
                logging.info("step %d: %f", it, speed)
                writer.add_scalar("it", it)
        """,
    "progress by a meter's display": """
        for it, x in enumerate(s.batches()):
            train(x)
            if it % 100 == 0:
                progress.display(it + 1)
        """,
    "progress, and the end of a trial run": """
        for it, x in enumerate(s.batches()):
            train(x)
            if it % 100 == 0:
                print(it)
                if options.dry_run:
                    break
        """,
    "an option that is filled in": """
        def main(options):
            if options.it == -1:
                options.it = int(environ["IT"])
            make(options.it)
            for x in s.batches():
                train(x)
        """,
    "a sum of this worker's own figures": """
        it = 0.0
        for x in s.batches():
            it += loss(x).item()
        print(it)
        """,
    "a count of its own samples": """
        it = 0
        for x in s.batches():
            it += len(x)
            bar.set_postfix(seen=it)
        """,
    "the best of its own figures, for a message": """
        it = 9.0
        for x in s.batches():
            loss = train(x)
            if loss < it:
                it = loss
                print(f"new best {it}")
        """,
    "the best by min, for a message": """
        it = 9.0
        for x in s.batches():
            it = min(it, train(x))
            bar.set_postfix(best=it)
        """,
    "set anew at each step": """
        for x in s.batches():
            it = 3
            f(it)
        """,
    "the index of a batch's parts": """
        for x in s.batches():
            for it, part in enumerate(x):
                loss(part).backward()
                if it > 3:
                    f()
        """,
    "outside of training": """
        it = 0
        for x in files:
            it += 1
            f(it)
        for x in s.batches():
            pass
        """,
    "no Python": "for x in s.batches() it += 1",
}


@pytest.mark.parametrize("script", HARMLESS.values(), ids=HARMLESS)
def test_a_variable_for_messages_or_own_data_is_not(script: str) -> None:
    assert names(script) == set()


def test_a_best_score_that_an_object_keeps_is_no_option_that_is_filled_in() -> None:
    script = """
        def main(kept):
            for x in s.batches():
                score = train(x)
                if kept.best is None or score < kept.best:
                    kept.best = score
                    torch.save(model, "best.pt")
        """
    assert names(script) == {"kept.best"}


def test_attributes_count_in_every_function() -> None:
    script = """
        class Trainer:
            def __init__(self):
                self.it = 0
            def train(self):
                for x in self.s.batches():
                    self.one(x)
            def one(self, x):
                self.it += 1
                rate(self.it)
        """
    assert names(script) == {"self.it"}
    assert len(carried_names(textwrap.dedent(script))) == 4, "the module and three functions"


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    carried_names(text)
