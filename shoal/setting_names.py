"""Other names of settings, short ones and those of version 0.1, for files, keyword arguments and flags."""

SWITCHES = {
    "network": "network.images",
    "memory": "memory.kind",
    "curiosity": "curiosity.enabled",
    "exploration": "exploration.kind",
    "server": "server.optimiser",
    "attack": "attack.kind",
    "compress": "compress.kind",
}
"""The name of a group stands for its switch."""

HYPERPARAMETERS = {
    "target_kl": "kl.limit",
    "kl_goal": "kl.goal",
    "comm_penalty_coeff": "peers.coef",
    "clip_reward": "inputs.clip_reward",
    "reward_floor": "inputs.reward_floor",
    "bootstrap_clip": "value.bootstrap_clip",
    "bootstrap_floor": "value.bootstrap_floor",
    "intrinsic_coef": "curiosity.coef",
    "extrinsic_coef": "curiosity.extrinsic_coef",
    "critic_learning_rate": "value.learning_rate",
    "exploration_noise": "exploration.noise",
    "exploration_initial": "exploration.initial",
    "exploration_final": "exploration.final",
    "target_noise": "target.noise",
    "target_noise_clip": "target.clip",
}
"""Names of hyperparameters in --evolve, schedules and metrics."""

MOVED = {
    "inputs": "clip_obs augment",
    "value": "huber_delta",
    "network": "critic_hidden init init_log_std split_start split_keys split_hidden grad_accumulation",
    "team": "policies critic_view agent_ids team_reward freeze freeze_every past_selves snapshot_every",
    "privacy": "clip noise_multiplier",
    "compress": "keep",
    "population": "fraction middle rivals resample min_episodes warm_up groups migrate_every",
}
"""Settings that version 0.1 had without a group, under the same name."""

RENAMED = {
    "kl_coef": "kl.coef",
    "clip_vloss": "value.clip",
    "value_loss": "value.loss",
    "norm_value": "value.norm",
    "recalc_adv": "value.recalculate",
    "comm_direction": "peers.direction",
    "comm_form": "peers.form",
    "memory_size": "memory.size",
    "intrinsic_scale": "curiosity.scale",
    "icm_beta": "curiosity.beta",
    "icm_size": "curiosity.size",
    "icm_learning_rate": "curiosity.learning_rate",
    "ou_theta": "exploration.theta",
    "exploration_fraction": "exploration.fraction",
    "server_lr": "server.lr",
    "server_momentum": "server.momentum",
    "privacy_delta": "privacy.delta",
    "attackers": "attack.count",
    "attack_strength": "attack.strength",
    "schedule": "hyper_plan",
}
"""Settings that version 0.1 had under another name."""

SHORT_NAMES = {
    **SWITCHES,
    **HYPERPARAMETERS,
    **{name: f"{group}.{name}" for group, names in MOVED.items() for name in names.split()},
    **RENAMED,
}
"""Every name without a group, and the setting that it stands for."""

REMOVED = {"transport"}
"""Settings of version 0.1 that no longer exist; files that have them still load."""
