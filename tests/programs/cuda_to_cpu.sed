# A program that insists on CUDA, on a machine without: the same program on the CPU with gloo.
s/(["'])(cpu:gloo,cuda:)?nccl\1/\1gloo\1/g
s/torch\.cuda\.(set_device|synchronize)\(([^()]|\([^()]*\))*\)/None/g
s/f"cuda:\{[^}"]*\}"/"cpu"/g
s/f'cuda:\{[^}']*\}'/'cpu'/g
s/([!=]= ?)(["'])cuda\2/\1\2CUDA\2/g
s/(["'])cuda\1 in /\1CUDA\1 in /g
s/(["'])cuda(:[0-9]+)?\1/\1cpu\1/g
s/device_ids ?= ?\[([^][]|\[[^]]*\])*\]/device_ids=None/g
s/output_device ?= ?[A-Za-z_.]+/output_device=None/g
s/\.cuda\(([^()]|\([^()]*\))*\)//g
s/\.to\((rank|gpu|gpu_id|self\.gpu_id|local_rank|self\.local_rank|args\.gpu)\)/.to("cpu")/g
s/torch\.accelerator\.current_accelerator\(\)/torch.device("cpu")/g
s/torch\.accelerator\.(set_device_index|device_index|synchronize)\(([^()]|\([^()]*\))*\)/None/g
s/torch\.device\(f"\{[a-z_.]*\}:\{[a-z_.]*\}"\)/torch.device("cpu")/g
s/verify_min_gpu_count\(min_gpus ?= ?_min_gpu_count\)/True/g
s/torch\.cuda\.device_count\(\)/1/g
s/assert torch\.cuda\.is_available\(\)/assert True/g
s/(["'])cuda:\{(:d)?\}\1\.format\(([^()]|\([^()]*\))*\)/"cpu"/g
s/torch\.cuda\.(reset_peak_memory_stats|manual_seed_all|manual_seed)\(([^()]|\([^()]*\))*\)/None/g
