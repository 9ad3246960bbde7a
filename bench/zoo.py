"""rl-baselines3-zoo's settings where the preset is our own, for tables that were measured with them."""

ZOO: dict[str, dict] = {
    "CartPole-v1": {"num_steps": 32, "num_minibatches": 1, "update_epochs": 20, "gae_lambda": 0.8},
}


def zoo_flags(env: str) -> list[str]:
    """The same for `shoal train`.

    >>> zoo_flags("CartPole-v1")[:2]
    ['--num-steps', '32']
    """
    return [
        word
        for name, value in ZOO.get(env, {}).items()
        for word in (f"--{name.replace('_', '-')}", str(value))
    ]
