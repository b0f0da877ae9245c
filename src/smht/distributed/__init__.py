"""Models and training over several processes: the only place that talks to torch.distributed."""
