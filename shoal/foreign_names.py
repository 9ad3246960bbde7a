"""Names of settings in other libraries, and what they are here."""

import re
from collections.abc import Callable

CALLED = {
    "total_timesteps": "steps",
    "total_steps": "steps",
    "timesteps": "steps",
    "num_timesteps": "steps",
    "max_steps": "steps",
    "random_seed": "seed",
    "num_seeds": "seeds",
    "n_seeds": "seeds",
    "n_agents": "learners",
    "num_agents": "learners",
    "population_size": "learners",
    "n_envs": "num_envs",
    "n_steps": "num_steps",
    "rollout_length": "num_steps",
    "train_freq": "num_steps",
    "n_stack": "frame_stack",
    "env_kwargs": "env_options",
    "lr": "learning_rate",
    "discount": "gamma",
    "n_minibatches": "num_minibatches",
    "n_epochs": "update_epochs",
    "num_epochs": "update_epochs",
    "epochs": "update_epochs",
    "actor_epochs": "update_epochs",
    "num_actor_epochs": "update_epochs",
    "critic_epochs": "value.epochs",
    "num_critic_epochs": "value.epochs",
    "critic.epochs": "value.epochs",
    "critic_lr": "value.learning_rate",
    "critic.learning_rate": "value.learning_rate",
    "gae": "gae_lambda",
    "lam": "gae_lambda",
    "lmbda": "gae_lambda",
    "clip_range": "clip_coef",
    "clip_eps": "clip_coef",
    "clip_epsilon": "clip_coef",
    "clip_range_vf": "value.clip",
    "ent": "ent_coef",
    "entropy_coef": "ent_coef",
    "entropy_coeff": "ent_coef",
    "vf": "vf_coef",
    "vf_coeff": "vf_coef",
    "value_coef": "vf_coef",
    "normalize_advantage": "norm_adv",
    "normalize_obs": "norm_obs",
    "normalize_reward": "norm_reward",
    "buffer": "buffer_size",
    "replay_size": "buffer_size",
    "warmup_steps": "learning_starts",
    "target_network_frequency": "target_every",
    "target_update_interval": "target_every",
    "policy_frequency": "policy_delay",
    "policy_noise": "target.noise",
    "noise_clip": "target.clip",
    "target_policy_noise": "target.noise",
    "hidden_size": "hidden",
    "hidden_sizes": "hidden",
    "layers": "hidden",
    "net_arch": "hidden",
}
"""Settings that have another name here."""

_ENV = "the environment comes without a name: shoal train CartPole-v1, in Python shoal.run('CartPole-v1')"
_BATCH = "PPO divides a rollout: {num_minibatches} is {num_envs} x {num_steps} / the size of a batch"
_CURVES = "metrics.csv and TensorBoard events are always written, into the run's folder"
_TRACKED = "--track wandb, mlflow or trackio records a run there, too, in Python track=NAME"
_DEVICE = "a GPU is used where JAX finds one; JAX_PLATFORMS=cpu in the environment keeps a run off it"
_FILM = (
    "--film-every STEPS films the best learner while training, in Python film_every=STEPS; "
    "shoal play RUN --gif FILE films a trained one, in Python run.video(FILE)"
)
_WINDOW = "training shows no window; shoal play RUN --human shows one afterwards"
_SAVED = "checkpoints are always written, into the run's folder; --save-every STEPS keeps more"
_EVALUATED = "--eval-every STEPS evaluates while training, in Python eval_every=STEPS"
_RESUMED = "runs resume by themselves: the same command goes on where it stopped"
_LOADED = "a trained run is opened by its folder: shoal eval RUN, in Python shoal.load(RUN)"
_FOLDER = "the run's folder is --out DIR, in Python folder='DIR'"
_NAME = "a run's folder is runs/NAME with --name NAME, in Python folder='runs/NAME'"
_WORKERS = (
    "{num_envs} environments are stepped together; --env-options workers=N steps Python's in N processes"
)
_REPORTS = "{reports} says how many times a run reports"
_QUIET = "a terminal shows a progress bar, elsewhere there is a line now and then"
_CALLBACK = "training is a loop, whose body does what callbacks do: for report in shoal.train('CartPole-v1')"
_POLICY = "the network follows from the observations; {hidden}, {activation} and {memory} describe it"

INSTEAD = {
    "env_id": _ENV,
    "env_name": _ENV,
    "gym_id": _ENV,
    "batch_size": _BATCH,
    "minibatch_size": _BATCH,
    "wandb": _TRACKED,
    "wandb_project_name": _TRACKED,
    "tensorboard": _CURVES,
    "tensorboard_log": _CURVES,
    "distribution_mode": "a Procgen game's mode is in its name, such as BigfishEasy-v0 or BigfishHard-v0, "
    "or among its {env_options}",
    "device": _DEVICE,
    "cuda": _DEVICE,
    "gpu": _DEVICE,
    "torch_deterministic": "runs repeat bit for bit on the same devices",
    "capture_video": _FILM,
    "record_video": _FILM,
    "video": _FILM,
    "render": _WINDOW,
    "render_mode": _WINDOW,
    "human": _WINDOW,
    "save_model": _SAVED,
    "checkpoint": _SAVED,
    "save_freq": _SAVED,
    "eval_freq": _EVALUATED,
    "eval_interval": _EVALUATED,
    "n_eval_episodes": "--eval-episodes N is how many episodes an evaluation plays",
    "reward_threshold": "--stop-at RETURN ends a run that reaches it, in Python stop_at=RETURN",
    "resume": _RESUMED,
    "continue": _RESUMED,
    "load": _LOADED,
    "load_model": _LOADED,
    "log_dir": _FOLDER,
    "logdir": _FOLDER,
    "output_dir": _FOLDER,
    "out": _FOLDER,
    "name": _NAME,
    "exp_name": _NAME,
    "run_name": _NAME,
    "num_workers": _WORKERS,
    "n_jobs": _WORKERS,
    "log_interval": _REPORTS,
    "verbose": _QUIET,
    "quiet": _QUIET,
    "progress_bar": _QUIET,
    "callback": _CALLBACK,
    "callbacks": _CALLBACK,
    "policy": _POLICY,
    "policy_kwargs": _POLICY,
}
"""What is no setting here, and what there is instead; {names} are settings."""


def explain(name: str, spell: Callable[[str], str] = str) -> str | None:
    """What a name of another library is here, in a line; None for names that are not known.

    `spell` writes a name as it is typed.

    >>> explain("lr")
    'lr is called learning_rate here'
    """
    if name in CALLED:
        return f"{spell(name)} is called {spell(CALLED[name])} here"
    if name in INSTEAD:
        return f"{spell(name)} is no setting: {re.sub(r'{(.*?)}', lambda m: spell(m[1]), INSTEAD[name])}"
    return None
