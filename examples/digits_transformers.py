"""Digits with Hugging Face Trainer: a small vision transformer, randomly initialised (nothing is downloaded)."""

from __future__ import annotations

import argparse

import torch
from digits_data import digits
from torch.utils.data import Dataset
from transformers import TrainingArguments, ViTConfig, ViTForImageClassification

from malletrain.elastic.adapters.huggingface import ElasticTrainer


class Named(Dataset[dict[str, torch.Tensor]]):
    """Digits as dictionaries with the names of the model's inputs."""

    def __init__(self, images: Dataset[tuple[torch.Tensor, ...]]) -> None:
        self._images = images

    def __len__(self) -> int:
        return len(self._images)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        pixels, label = self._images[index]
        return {"pixel_values": pixels, "labels": label}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=64, help="samples of a step, over all workers")
    parser.add_argument("--output", default="digits-transformers")
    parser.add_argument("--keep-best", action="store_true", help="end with the model of the best epoch")
    parser.add_argument("--double", action="store_true", help="train in float64")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=8, patch_size=2,
        num_channels=1, num_labels=10, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = ViTForImageClassification(config)
    if options.double:
        model = model.double()
        torch.set_default_dtype(torch.float64)
    train, test = (Named(part) for part in digits(image=True, dtype=torch.get_default_dtype()))
    arguments = TrainingArguments(
        output_dir=options.output, num_train_epochs=options.epochs, per_device_train_batch_size=options.batch_size,
        learning_rate=2e-3, lr_scheduler_type="cosine", max_grad_norm=1.0,
        eval_strategy="epoch" if options.keep_best else "no",
        save_strategy="epoch" if options.keep_best else "no", load_best_model_at_end=options.keep_best,
        metric_for_best_model="accuracy" if options.keep_best else None, save_total_limit=2,
        logging_steps=50, report_to=[], disable_tqdm=True, use_cpu=not torch.cuda.is_available(),
    )  # fmt: skip
    trainer = ElasticTrainer(
        model=model,
        args=arguments,
        train_dataset=train,
        eval_dataset=test,
        compute_metrics=lambda seen: {"accuracy": float((seen.predictions.argmax(-1) == seen.label_ids).mean())},
    )
    trainer.train()
    figures = trainer.evaluate()
    if trainer.is_world_process_zero():
        print(f"accuracy {figures['eval_accuracy']:.3f}", flush=True)
    trainer.save_model()


if __name__ == "__main__":
    main()
