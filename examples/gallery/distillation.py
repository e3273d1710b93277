"""Knowledge distillation: a small network learns the labels, and what a trained larger one says of each image.

After pytorch/tutorials, beginner_source/knowledge_distillation_tutorial.py (https://github.com/pytorch/tutorials).
Licence of the original: BSD-3-Clause. Other than there, scikit-learn trains the teacher.
"""

from __future__ import annotations

import torch
from gallery_data import digits, options_of
from sklearn.neural_network import MLPClassifier
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from malletrain import elastic

TEMPERATURE, SOFT_WEIGHT = 2.0, 0.25


def trained_teacher(images: TensorDataset) -> nn.Module:
    """A network of 64 hidden units. It is computed on each worker, and is the same everywhere."""
    pixels, labels = images.tensors
    found = MLPClassifier((64,), random_state=0)
    for _ in range(40):
        found.partial_fit(pixels.flatten(1).numpy(), labels.numpy(), classes=range(10))
    layers = [nn.Linear(64, 64), nn.Linear(64, 10)]
    for layer, weights, biases in zip(layers, found.coefs_, found.intercepts_, strict=True):
        layer.weight.data.copy_(torch.tensor(weights.T))
        layer.bias.data.copy_(torch.tensor(biases))
    return nn.Sequential(nn.Flatten(), layers[0], nn.ReLU(), layers[1]).requires_grad_(False)


def main() -> None:
    options = options_of(__doc__)
    train, test = digits()
    teacher = trained_teacher(train)
    teacher.eval()
    student = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10))
    optimizer = torch.optim.Adam(student.parameters(), lr=5e-3)
    s = elastic.Session(student, optimizer, train, batch_size=options.batch_size)

    def score(batch: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"accuracy": (student(batch[0]).argmax(1) == batch[1]).sum()}

    figures: dict[str, float] = {}
    for epoch in s.epochs(options.epochs):
        for inputs, labels in s.batches():
            optimizer.zero_grad()
            with torch.no_grad():
                teacher_logits = teacher(inputs)
            student_logits = student(inputs)
            soft = functional.kl_div(
                functional.log_softmax(student_logits / TEMPERATURE, dim=1),
                functional.softmax(teacher_logits / TEMPERATURE, dim=1),
                reduction="batchmean",
            )
            hard = functional.cross_entropy(student_logits, labels)
            (SOFT_WEIGHT * TEMPERATURE**2 * soft + (1 - SOFT_WEIGHT) * hard).backward()
            optimizer.step()
        figures = s.evaluate(score, test)
        if s.is_main:
            print(f"epoch {epoch + 1}: {figures}", flush=True)
    s.finish(figures)


if __name__ == "__main__":
    main()
