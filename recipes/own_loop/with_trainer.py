"""The Transformers Trainer with a planned batch sampler: `torchrun --nproc-per-node 2 FILE`.

Under any `gradient_accumulation_steps`. The Trainer needs `accelerate`.
"""

import torch
from tokenizers import Tokenizer, models
from torch.utils.data import DataLoader
from transformers import (
    DataCollatorWithPadding,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)

from dynbench.sampler import PlannedBatchSampler


class PlannedLoader(DataLoader):
    def set_epoch(self, epoch):
        self.batch_sampler.set_epoch(epoch)


class PlannedTrainer(Trainer):
    def get_train_dataloader(self):
        lengths = [len(sample["input_ids"]) for sample in self.train_dataset]
        ranks, rank = self.args.world_size, self.args.process_index
        self.sampler = PlannedBatchSampler(lengths, ranks, rank, self.args.train_batch_size * ranks)
        self.model_accepts_loss_kwargs = False  # a mean of its own batch: divided by the batches accumulated
        return PlannedLoader(self.train_dataset, batch_sampler=self.sampler, collate_fn=self.data_collator)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True)
        if model.training:
            loss = loss * self.sampler.weight(inputs["labels"])
        return (loss, outputs) if return_outputs else loss


random = torch.Generator().manual_seed(0)
lengths = torch.randint(4, 60, (256,), generator=random).tolist()
data = [{"input_ids": torch.randint(1, 99, (n,), generator=random).tolist(), "labels": n % 2} for n in lengths]
tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"[PAD]": 0})), pad_token="[PAD]")
model = DistilBertForSequenceClassification(
    DistilBertConfig(vocab_size=99, dim=32, hidden_dim=64, n_layers=1, n_heads=2)
)
arguments = TrainingArguments(
    "trainer-out", per_device_train_batch_size=8, num_train_epochs=2, use_cpu=True, save_strategy="no", report_to="none"
)
trainer = PlannedTrainer(model, arguments, train_dataset=data, data_collator=DataCollatorWithPadding(tokenizer))
print(f"trained {trainer.train().global_step} steps")
