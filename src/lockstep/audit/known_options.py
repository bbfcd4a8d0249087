"""The options that the programs of a release have. tests/stack compares the tables with the release."""

# ruff: noqa: SIM905

from __future__ import annotations

SWIFT = "3.10.3"
"""The ms-swift release of the tables here: the fields of RolloutArguments, DeployArguments, TrainArguments
and RLHFArguments (swift/llm/argument), inherited ones included."""
TRL = "0.24.0"
"""The trl release of the table here: the fields of ScriptArguments (trl/scripts/vllm_serve.py)."""
RENAMED_IN = "3.7.0"
"""The first ms-swift release that has the engine's options with `vllm_` before their names, and only so."""
RENAMED = frozenset(
    """
    data_parallel_size disable_custom_all_reduce enable_prefix_caching enforce_eager gpu_memory_utilization
    limit_mm_per_prompt max_num_seqs pipeline_parallel_size tensor_parallel_size use_async_engine
    """.split()
)
"""Options of a rollout or deployed server under their names before that, as ms-swift 3.6.4 has them."""
_BASE = frozenset(
    """
    adapters agent_template attn_impl bnb_4bit_compute_dtype bnb_4bit_quant_storage bnb_4bit_quant_type
    bnb_4bit_use_double_quant cached_dataset ckpt_dir columns custom_dataset_info custom_register_path
    data_seed dataset dataset_num_proc dataset_shuffle ddp_backend ddp_timeout device_groups device_map
    download_mode external_plugins hqq_axis hub_token ignore_args_error init_strategy interleave_prob
    lazy_tokenize load_args load_data_args load_from_cache_file local_repo_path log_level logprobs
    lora_modules loss_scale max_length max_memory max_model_len max_new_tokens max_pixels metric model
    model_author model_kwargs model_name model_revision model_type new_special_tokens norm_bbox num_beams
    num_labels packing packing_length padding_free padding_side problem_type quant_bits quant_method
    ray_exp_name remove_unused_columns repetition_penalty response_prefix rope_scaling seed
    sequence_parallel_size shuffle_buffer_size split_dataset_ratio stop_words stopping_strategy stream
    streaming strict system task_type temperature template template_backend top_k top_logprobs top_p
    torch_dtype train_type truncation_strategy tuner_backend use_chat_template use_hf use_ray use_swift_lora
    val_dataset val_dataset_shuffle
    """.split()
)
_SERVER = frozenset(
    """
    api_key host infer_backend lmdeploy_cache_max_entry_count lmdeploy_quant_policy lmdeploy_session_len
    lmdeploy_tp lmdeploy_vision_batch_size log_interval max_batch_size max_logprobs max_shard_size
    merge_lora owned_by port reranker_use_activation result_path safe_serialization served_model_name
    sglang_context_length sglang_disable_cuda_graph sglang_disable_custom_all_reduce sglang_dp_size
    sglang_enable_dp_attention sglang_enable_ep_moe sglang_ep_size sglang_kv_cache_dtype
    sglang_mem_fraction_static sglang_pp_size sglang_quantization sglang_tp_size ssl_certfile ssl_keyfile
    val_dataset_sample verbose vllm_data_parallel_size vllm_disable_cascade_attn
    vllm_disable_custom_all_reduce vllm_enable_expert_parallel vllm_enable_prefix_caching vllm_enforce_eager
    vllm_engine_kwargs vllm_gpu_memory_utilization vllm_limit_mm_per_prompt vllm_max_lora_rank
    vllm_max_model_len vllm_max_num_seqs vllm_mm_processor_cache_gb vllm_pipeline_parallel_size
    vllm_quantization vllm_reasoning_parser vllm_tensor_parallel_size vllm_use_async_engine write_batch_size
    """.split()
)
_ROLLOUT = frozenset(
    """
    context_manager gym_env max_turns multi_turn_scheduler use_gym_env vllm_enable_lora
    """.split()
)
_TRAINER = frozenset(
    """
    acc_strategy accelerator_config adafactor adalora_beta1 adalora_beta2 adalora_deltaT adalora_init_r
    adalora_orth_reg_weight adalora_target_r adalora_tfinal adalora_tinit adam_beta1 adam_beta2
    adam_epsilon adapter_act adapter_length add_version aligner_lr auto_find_batch_size
    average_tokens_across_devices batch_eval_metrics bf16 bf16_full_eval boft_block_num boft_block_size
    boft_dropout boft_n_butterfly_factor check_model create_checkpoint_symlink dataloader_drop_last
    dataloader_num_workers dataloader_persistent_workers dataloader_pin_memory dataloader_prefetch_factor
    ddp_broadcast_buffers ddp_bucket_cap_mb ddp_find_unused_parameters debug deepspeed
    deepspeed_autotp_size disable_tqdm do_eval do_predict do_train ds3_gather_for_generation
    early_stop_interval enable_channel_loss enable_dft_loss eval_accumulation_steps eval_dataset
    eval_dataset_args eval_delay eval_do_concat_batches eval_generation_config eval_limit eval_on_start
    eval_steps eval_strategy eval_use_evalscope eval_use_gather_object extra_eval_args fourier_n_frequency
    fourier_scaling fp16 fp16_backend fp16_full_eval fp16_opt_level freeze_aligner freeze_llm
    freeze_parameters freeze_parameters_ratio freeze_parameters_regex freeze_vit fsdp fsdp_config
    fsdp_min_num_params fsdp_transformer_layer_cls_to_wrap full_determinism galore_cos_threshold
    galore_gamma_proj galore_optim_per_parameter galore_proj_bits galore_proj_group_size galore_proj_quant
    galore_proj_type galore_quantization galore_queue_size galore_rank galore_scale galore_target_modules
    galore_update_proj_gap galore_with_embedding generation_config generation_max_length
    generation_num_beams gradient_accumulation_steps gradient_checkpointing gradient_checkpointing_kwargs
    greater_is_better group_by_length half_precision_backend hub_always_push hub_model_id hub_private_repo
    hub_revision hub_strategy ignore_data_skip include_for_metrics include_inputs_for_metrics
    include_num_input_tokens_seen include_tokens_per_second init_weights jit_mode_eval label_names
    label_smoothing_factor learning_rate length_column_name liger_kernel_config lisa_activated_layers
    lisa_step_interval llamapro_num_groups llamapro_num_new_blocks load_best_model_at_end local_rank
    log_level_replica log_on_each_node logging_dir logging_first_step logging_nan_inf_filter logging_steps
    logging_strategy lora_alpha lora_bias lora_dropout lora_dtype lora_ga_batch_size lora_ga_direction
    lora_ga_iters lora_ga_max_length lora_ga_scale lora_ga_stable_gamma lora_rank lorap_lr_ratio loss_type
    lr_scheduler_kwargs lr_scheduler_type max_epochs max_grad_norm max_steps metric_for_best_model
    modules_to_save mp_parameters neftune_noise_alpha no_cuda num_train_epochs optim optim_args
    optim_target_modules optimizer output_dir overwrite_output_dir parallelism_config past_index
    per_device_eval_batch_size per_device_train_batch_size per_gpu_eval_batch_size
    per_gpu_train_batch_size predict_with_generate prediction_loss_only project push_to_hub
    push_to_hub_model_id push_to_hub_organization push_to_hub_token ray_scope reft_args
    reft_intervention_type reft_layer_key reft_layers reft_rank report_to
    restore_callback_states_from_checkpoint resume_from_checkpoint resume_only_model router_aux_loss_coef
    run_name save_on_each_node save_only_model save_safetensors save_steps save_strategy save_total_limit
    skip_memory_metrics sortish_sampler swanlab_exp_name swanlab_lark_secret swanlab_lark_webhook_url
    swanlab_mode swanlab_project swanlab_token swanlab_workspace target_modules target_parameters
    target_regex tf32 torch_compile torch_compile_backend torch_compile_mode torch_empty_cache_steps
    torchdynamo tpu_metrics_debug tpu_num_cores trackio_space_id train_dataloader_shuffle
    trainable_parameters trainable_parameters_regex use_cpu use_dora use_flash_ckpt use_galore
    use_legacy_prediction_loop use_liger_kernel use_logits_to_keep use_mps_device use_rslora
    vera_d_initial vera_dropout vera_projection_prng_key vera_rank vit_gradient_checkpointing vit_lr
    warmup_ratio warmup_steps weight_decay zero_hpz_partition_size
    """.split()
)
_RLHF = frozenset(
    """
    advantage_estimator async_generate beta center_rewards_coefficient chord_enable_phi_function
    chord_mu_decay_steps chord_mu_peak chord_mu_valley chord_mu_warmup_steps chord_sft_dataset
    chord_sft_per_device_train_batch_size cliprange cliprange_value completion_length_limit_scope
    cosine_max_len cosine_max_len_value_correct cosine_max_len_value_wrong cosine_min_len_value_correct
    cosine_min_len_value_wrong cpo_alpha delta desirable_weight discopop_tau dynamic_sample epsilon
    epsilon_high gamma generation_batch_size importance_sampling_level kl_coef kl_in_reward
    label_smoothing lam ld_alpha lmbda local_rollout_forward_batch_size log_completions log_entropy
    loss_weights max_completion_length max_resample_times max_turns missing_eos_penalty move_model_batches
    multi_turn_scheduler num_generations num_iterations num_mini_batches num_ppo_epochs
    num_sample_generations offload_model offload_optimizer offload_teacher_model overlong_filter
    ref_adapters ref_model ref_model_mixup_alpha ref_model_revision ref_model_sync_steps ref_model_type
    repetition_max_penalty repetition_n_grams response_length reward_adapters reward_funcs reward_model
    reward_model_plugin reward_model_revision reward_model_type reward_weights rlhf_type rpo_alpha
    scale_rewards seq_kd sft_alpha simpo_gamma sleep_level soft_cache_length soft_max_length
    steps_per_generation sync_ref_model teacher_adapters teacher_deepspeed teacher_model
    teacher_model_revision teacher_model_type top_entropy_quantile undesirable_weight use_vllm vf_coef
    vllm_data_parallel_size vllm_disable_cascade_attn vllm_disable_custom_all_reduce
    vllm_enable_expert_parallel vllm_enable_lora vllm_enable_prefix_caching vllm_enforce_eager
    vllm_engine_kwargs vllm_gpu_memory_utilization vllm_limit_mm_per_prompt vllm_max_lora_rank
    vllm_max_model_len vllm_max_num_seqs vllm_mm_processor_cache_gb vllm_mode vllm_pipeline_parallel_size
    vllm_quantization vllm_reasoning_parser vllm_server_base_url vllm_server_host vllm_server_pass_dataset
    vllm_server_port vllm_server_timeout vllm_tensor_parallel_size vllm_use_async_engine
    wandb_log_unique_prompts whiten_rewards
    """.split()
)
_TRL_SERVER = frozenset(
    """
    data_parallel_size dtype enable_prefix_caching enforce_eager gpu_memory_utilization host kv_cache_dtype
    log_level max_model_len model port revision tensor_parallel_size trust_remote_code vllm_model_impl
    """.split()
)

KNOWN = {
    "rollout": _BASE | _SERVER | _ROLLOUT,
    "deploy": _BASE | _SERVER,
    "sft": _BASE | _TRAINER,
    "pt": _BASE | _TRAINER,
    "rlhf": _BASE | _TRAINER | _RLHF,
    "vllm-serve": _TRL_SERVER,
}
"""By the subcommand."""
