"""Accelerate with a planned batch sampler, under any `gradient_accumulation_steps`: `torchrun --nproc-per-node 2 FILE`.

The loader is sharded already, so it is not given to `prepare`.
"""

import torch
from accelerate import Accelerator
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from dynbench.sampler import PlannedBatchSampler

accelerator = Accelerator(cpu=True)
random = torch.Generator().manual_seed(0)
samples = [torch.randint(1, 99, (n,), generator=random) for n in torch.randint(4, 200, (512,), generator=random)]
lengths, ranks, rank = list(map(len, samples)), accelerator.num_processes, accelerator.process_index
sampler = PlannedBatchSampler(lengths, ranks, rank, global_batch=32)
loader = DataLoader(samples, batch_sampler=sampler, collate_fn=lambda batch: pad_sequence(batch, batch_first=True))
model = torch.nn.EmbeddingBag(99, 1, mode="sum", padding_idx=0)
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
for epoch in range(2):
    sampler.set_epoch(epoch)
    for tokens in loader:
        with accelerator.accumulate(model):
            loss = model(tokens.to(accelerator.device)).pow(2).mean()
            accelerator.backward(loss * sampler.weight(tokens))
            optimizer.step()
            optimizer.zero_grad()
    print(f"rank {rank}, epoch {epoch}: last batch {len(tokens)} samples, loss {loss:.3f}")
accelerator.end_training()
