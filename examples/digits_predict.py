"""Batch inference over handwritten digits, as independent items: `python examples/digits_predict.py out`.

The same script runs on a laptop, in several terminals at once, and with `mtbatch --elastic=tasks`.
"""

from __future__ import annotations

import argparse
import json

import torch
from digits_data import digits

from malletrain import elastic

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("folder", help="where the predictions are kept; a later run goes on from there")
parser.add_argument("--batch", type=int, default=20, help="images that are claimed and committed together")
options = parser.parse_args()

known, images = digits(image=False)
pixels, labels = known.tensors
centres = torch.stack([pixels[labels == digit].mean(0) for digit in range(10)])  # the model: nearest mean image

with elastic.Items(options.folder, len(images), batch=options.batch) as items:
    for batch in items:
        distances = torch.cdist(images.tensors[0][list(batch.items)], centres)
        batch.commit(json.dumps(distances.argmin(1).tolist()).encode())
    predicted = torch.tensor([label for _, result in items.results() for label in json.loads(result)])

correct = int((predicted == images.tensors[1]).sum())
print(f"{correct} of {len(images)} correct")
