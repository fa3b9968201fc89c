"""Packed rows of real tokens with a planned batch sampler: `torchrun --nproc-per-node 2 FILE`.

`check_packed_rows` proves on a few samples that those of a row do not see each other, and prepares the model.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from transformers import DistilBertConfig, DistilBertForSequenceClassification

from dynbench.kernels import PackedCollator, check_packed_rows
from dynbench.sampler import PlannedBatchSampler

dist.init_process_group("gloo")
random = torch.Generator().manual_seed(0)
lengths = torch.randint(4, 60, (256,), generator=random).tolist()
data = [{"input_ids": torch.randint(1, 99, (n,), generator=random).tolist(), "labels": n % 2} for n in lengths]
sampler = PlannedBatchSampler(lengths, dist.get_world_size(), dist.get_rank(), global_batch=16, layout="packed")
loader = DataLoader(data, batch_sampler=sampler, collate_fn=PackedCollator())
torch.manual_seed(0)
model = DistilBertForSequenceClassification(
    DistilBertConfig(vocab_size=99, dim=32, hidden_dim=64, n_layers=1, n_heads=2)
)
longest_first = sorted((sample["input_ids"] for sample in data), key=len, reverse=True)
check_packed_rows(model, longest_first[::64])
model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters())
for epoch in range(2):
    sampler.set_epoch(epoch)
    for batch in loader:
        loss = model(**batch).loss
        (loss * sampler.weight(batch)).backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"rank {dist.get_rank()}, epoch {epoch}: last batch {len(batch['labels'])} samples, loss {loss:.3f}")
dist.destroy_process_group()
