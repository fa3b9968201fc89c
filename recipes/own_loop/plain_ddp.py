"""DistributedDataParallel with a planned batch sampler: `torchrun --nproc-per-node 2 FILE`."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from dynbench.sampler import PlannedBatchSampler

dist.init_process_group("gloo")
random = torch.Generator().manual_seed(0)
samples = [torch.randint(1, 99, (n,), generator=random) for n in torch.randint(4, 200, (512,), generator=random)]
sampler = PlannedBatchSampler(list(map(len, samples)), dist.get_world_size(), dist.get_rank(), global_batch=32)
loader = DataLoader(samples, batch_sampler=sampler, collate_fn=lambda batch: pad_sequence(batch, batch_first=True))
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.EmbeddingBag(99, 1, mode="sum", padding_idx=0))
optimizer = torch.optim.AdamW(model.parameters())
for epoch in range(2):
    sampler.set_epoch(epoch)
    for tokens in loader:
        loss = model(tokens).pow(2).mean()
        (loss * sampler.weight(tokens)).backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"rank {dist.get_rank()}, epoch {epoch}: last batch {len(tokens)} samples, loss {loss:.3f}")
dist.destroy_process_group()
