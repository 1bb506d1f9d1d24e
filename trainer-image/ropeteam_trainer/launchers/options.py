"""The options of launchers, as their own parsers say. Written by tools/launchers.py (`make launchers`).

Flags that mean one option are joined by `|`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    version: str
    values: str
    """Options that take one value."""
    switches: str
    """Options that take none."""
    abbreviations: bool = True
    """Whether a beginning of a long option means it, where it can mean no other."""
    interspersed: bool = False
    """Whether options are read after the script, too."""


# fmt: off
OPTIONS = {
    "accelerate": Options(
        "accelerate 1.15.0",
        "--config_file|--config-file --mixed_precision|--mixed-precision --num_processes|--num-processes "
        "--num_machines|--num-machines --num_cpu_threads_per_process|--num-cpu-threads-per-process "
        "--dynamo_backend|--dynamo-backend --dynamo_mode|--dynamo-mode --gpu_ids|--gpu-ids "
        "--machine_rank|--machine-rank --main_process_ip|--main-process-ip "
        "--main_process_port|--main-process-port -t|--tee --log_dir|--log-dir --role "
        "--rdzv_backend|--rdzv-backend --rdzv_conf|--rdzv-conf --max_restarts|--max-restarts "
        "--monitor_interval|--monitor-interval --vm --env "
        "--main_training_function|--main-training-function "
        "--deepspeed_config_file|--deepspeed-config-file --zero_stage|--zero-stage "
        "--offload_optimizer_device|--offload-optimizer-device "
        "--offload_param_device|--offload-param-device "
        "--offload_optimizer_nvme_path|--offload-optimizer-nvme-path "
        "--offload_param_nvme_path|--offload-param-nvme-path "
        "--gradient_accumulation_steps|--gradient-accumulation-steps "
        "--gradient_clipping|--gradient-clipping --zero3_init_flag|--zero3-init-flag "
        "--zero3_save_16bit_model|--zero3-save-16bit-model --deepspeed_hostfile|--deepspeed-hostfile "
        "--deepspeed_exclusion_filter|--deepspeed-exclusion-filter "
        "--deepspeed_inclusion_filter|--deepspeed-inclusion-filter "
        "--deepspeed_multinode_launcher|--deepspeed-multinode-launcher "
        "--deepspeed_moe_layer_cls_names|--deepspeed-moe-layer-cls-names --fsdp_version|--fsdp-version "
        "--fsdp_offload_params|--fsdp-offload-params --fsdp_min_num_params|--fsdp-min-num-params "
        "--fsdp_sharding_strategy|--fsdp-sharding-strategy "
        "--fsdp_reshard_after_forward|--fsdp-reshard-after-forward "
        "--fsdp_auto_wrap_policy|--fsdp-auto-wrap-policy "
        "--fsdp_transformer_layer_cls_to_wrap|--fsdp-transformer-layer-cls-to-wrap "
        "--fsdp_backward_prefetch|--fsdp-backward-prefetch --fsdp_state_dict_type|--fsdp-state-dict-type "
        "--fsdp_forward_prefetch|--fsdp-forward-prefetch --fsdp_use_orig_params|--fsdp-use-orig-params "
        "--fsdp_cpu_ram_efficient_loading|--fsdp-cpu-ram-efficient-loading "
        "--fsdp_sync_module_states|--fsdp-sync-module-states "
        "--fsdp_activation_checkpointing|--fsdp-activation-checkpointing "
        "--fsdp_activation_checkpointing_offload|--fsdp-activation-checkpointing-offload "
        "--megatron_lm_tp_degree|--megatron-lm-tp-degree "
        "--megatron_lm_use_custom_fsdp|--megatron-lm-use-custom-fsdp "
        "--megatron_lm_no_load_optim|--megatron-lm-no-load-optim "
        "--megatron_lm_eod_mask_loss|--megatron-lm-eod-mask-loss "
        "--megatron_lm_overlap_cpu_optimizer_d2h_h2d|--megatron-lm-overlap-cpu-optimizer-d2h-h2d "
        "--megatron_lm_no_save_optim|--megatron-lm-no-save-optim "
        "--megatron_lm_optimizer_cpu_offload|--megatron-lm-optimizer-cpu-offload "
        "--megatron_lm_use_precision_aware_optimizer|--megatron-lm-use-precision-aware-optimizer "
        "--megatron_lm_decoder_last_pipeline_num_layers|--megatron-lm-decoder-last-pipeline-num-layers "
        "--megatron_lm_pp_degree|--megatron-lm-pp-degree "
        "--megatron_lm_num_micro_batches|--megatron-lm-num-micro-batches "
        "--megatron_lm_sequence_parallelism|--megatron-lm-sequence-parallelism "
        "--megatron_lm_recompute_activations|--megatron-lm-recompute-activations "
        "--megatron_lm_use_distributed_optimizer|--megatron-lm-use-distributed-optimizer "
        "--megatron_lm_gradient_clipping|--megatron-lm-gradient-clipping "
        "--megatron_lm_recompute_granularity|--megatron-lm-recompute-granularity "
        "--megatron_lm_recompute_method|--megatron-lm-recompute-method "
        "--megatron_lm_recompute_num_layers|--megatron-lm-recompute-num-layers "
        "--megatron_lm_attention_backend|--megatron-lm-attention-backend "
        "--megatron_lm_expert_model_parallel_size|--megatron-lm-expert-model-parallel-size "
        "--megatron_lm_context_parallel_size|--megatron-lm-context-parallel-size "
        "--megatron_lm_attention_dropout|--megatron-lm-attention-dropout "
        "--megatron_lm_hidden_dropout|--megatron-lm-hidden-dropout "
        "--megatron_lm_attention_softmax_in_fp32|--megatron-lm-attention-softmax-in-fp32 "
        "--megatron_lm_expert_tensor_parallel_size|--megatron-lm-expert-tensor-parallel-size "
        "--megatron_lm_calculate_per_token_loss|--megatron-lm-calculate-per-token-loss "
        "--megatron_lm_use_rotary_position_embeddings|--megatron-lm-use-rotary-position-embeddings "
        "--fp8_backend|--fp8-backend --fp8_margin|--fp8-margin --fp8_interval|--fp8-interval "
        "--fp8_format|--fp8-format --fp8_amax_history_len|--fp8-amax-history-len "
        "--fp8_amax_compute_algo|--fp8-amax-compute-algo "
        "--fp8_override_linear_precision|--fp8-override-linear-precision --fp8_opt_level|--fp8-opt-level "
        "--fp8_enable_fsdp_float8_all_gather|--fp8-enable-fsdp-float8-all-gather "
        "--fp8_pad_inner_dim|--fp8-pad-inner-dim --aws_access_key_id|--aws-access-key-id "
        "--aws_secret_access_key|--aws-secret-access-key --mpirun_hostfile|--mpirun-hostfile "
        "--parallelism_config_dp_replicate_size|--parallelism-config-dp-replicate-size "
        "--parallelism_config_dp_shard_size|--parallelism-config-dp-shard-size "
        "--parallelism_config_tp_size|--parallelism-config-tp-size "
        "--parallelism_config_cp_size|--parallelism-config-cp-size "
        "--parallelism_config_cp_backend|--parallelism-config-cp-backend "
        "--parallelism_config_cp_comm_strategy|--parallelism-config-cp-comm-strategy "
        "--parallelism_config_sp_size|--parallelism-config-sp-size "
        "--parallelism_config_sp_backend|--parallelism-config-sp-backend "
        "--parallelism_config_sp_seq_length|--parallelism-config-sp-seq-length "
        "--parallelism_config_sp_seq_length_is_variable|--parallelism-config-sp-seq-length-is-variable "
        "--parallelism_config_sp_attn_implementation|--parallelism-config-sp-attn-implementation",
        "--quiet|-q --cpu --multi_gpu|--multi-gpu --tpu --enable_cpu_affinity|--enable-cpu-affinity "
        "--dynamo_use_fullgraph|--dynamo-use-fullgraph --dynamo_use_dynamic|--dynamo-use-dynamic "
        "--dynamo_use_regional_compilation|--dynamo-use-regional-compilation "
        "--use_deepspeed|--use-deepspeed --use_fsdp|--use-fsdp "
        "--use_parallelism_config|--use-parallelism-config --use_megatron_lm|--use-megatron-lm "
        "--same_network|--same-network -m|--module --no_python|--no-python --tpu_cluster|--tpu-cluster "
        "--no_tpu_cluster|--no-tpu-cluster --tpu_use_sudo|--tpu-use-sudo --downcast_bf16|--downcast-bf16 "
        "--fp8_use_autocast_during_eval|--fp8-use-autocast-during-eval --debug",
        abbreviations=False,
    ),
    "composer": Options(
        "mosaicml 0.32.1",
        "-n|--nproc --stdout --stderr --world_size --base_rank --node_rank --master_addr --master_port",
        "--version -v|--verbose -m|--module_mode -c|--command_mode",
    ),
    "deepspeed": Options(
        "deepspeed 0.19.8",
        "-H|--hostfile -i|--include -e|--exclude --num_nodes --num_gpus|--num_accelerators --master_port "
        "--master_addr --node_rank --launcher --launcher_args --enable_each_rank_log --autotuning "
        "--bind_core_list --ssh_port --venv_script --log_level",
        "--module --no_python --no_local_rank --no_ssh --no_ssh_check --force_multi --save_pid "
        "--bind_cores_to_rank -q|--quiet",
    ),
    "fabric": Options(
        "lightning 2.6.6",
        "--accelerator --strategy --devices --num-nodes|--num_nodes --node-rank|--node_rank "
        "--main-address|--main_address --main-port|--main_port --precision",
        "",
        abbreviations=False,
        interspersed=True,
    ),
    "torchrun": Options(
        "torch 2.13.0",
        "--nnodes --nproc-per-node|--nproc_per_node --rdzv-backend|--rdzv_backend "
        "--rdzv-endpoint|--rdzv_endpoint --rdzv-id|--rdzv_id --rdzv-conf|--rdzv_conf "
        "--max-restarts|--max_restarts --monitor-interval|--monitor_interval "
        "--start-method|--start_method --event-log-handler|--event_log_handler --role --log-dir|--log_dir "
        "-r|--redirects -t|--tee --local-ranks-filter|--local_ranks_filter "
        "--duplicate-stdout-filters|--duplicate_stdout_filters "
        "--duplicate-stderr-filters|--duplicate_stderr_filters --node-rank|--node_rank "
        "--master-addr|--master_addr --master-port|--master_port --local-addr|--local_addr "
        "--logs-specs|--logs_specs --numa-binding|--numa_binding --signals-to-handle|--signals_to_handle "
        "--shutdown-timeout|--shutdown_timeout",
        "--standalone -m|--module --no-python|--no_python --run-path|--run_path "
        "--virtual-local-rank|--virtual_local_rank",
    ),
    "uv": Options(
        "uv 0.13.9",
        "--extra --no-extra --group --no-group --only-group --no-editable-package --env-file -w|--with "
        "--with-editable --with-requirements --package --python-platform --index --default-index "
        "-i|--index-url --extra-index-url -f|--find-links --index-strategy --keyring-provider "
        "-P|--upgrade-package --upgrade-group --resolution --prerelease --prerelease-package "
        "--fork-strategy --exclude-newer --exclude-newer-package --no-sources-package --reinstall-package "
        "--link-mode -C|--config-setting --config-settings-package --no-build-isolation-package "
        "--no-build-package --no-binary-package --cache-dir --refresh-package -p|--python --color "
        "--allow-insecure-host --directory --project --config-file",
        "--all-extras --no-dev --only-dev --no-default-groups --all-groups -m|--module --no-editable "
        "--exact --no-env-file --isolated --active --no-sync --locked --frozen -s|--script --gui-script "
        "--all-packages --no-project --no-index -U|--upgrade --no-sources --reinstall --compile-bytecode "
        "--no-build-isolation --no-build --no-binary --require-build-hashes --no-require-build-hashes "
        "-n|--no-cache --refresh --managed-python --no-managed-python --no-python-downloads -q|--quiet "
        "-v|--verbose --system-certs --offline --no-progress --no-config",
        abbreviations=False,
    ),
}
