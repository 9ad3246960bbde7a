"""Eight learners in eight different worlds, alone and federated, then in worlds nobody has seen."""

import shoal
from shoal.envs.worlds import parameters

SPREAD, EPISODES = 1.0, 50


def unseen_return(config: shoal.TrainConfig) -> float:
    """Train, then play every learner in worlds that nobody trained in."""
    for report in shoal.train(config):
        apart = report.metrics["disagreement/policy"].mean()
    print(f"  trained: return {report.metrics['return_mean'].mean():.0f}, policies {apart:.3f} nats apart")
    recipe = shoal.make(config.env)
    learner = shoal.ppo(config.algo, recipe.spec, config.num_iterations)
    fresh = parameters.draw_unseen_worlds(recipe.spec, SPREAD, config.learners * EPISODES, seed=1)
    params = type(fresh)(*(leaf.reshape(config.learners, EPISODES) for leaf in fresh))
    returns, _ = shoal.evaluate(recipe, learner, report.state.cohort, EPISODES, params=params)
    return returns.mean()


alone = shoal.preset("CartPole-v1", steps=50_000, learners=8, env_spread=SPREAD)
federated = shoal.preset(
    "CartPole-v1", steps=50_000, learners=8, env_spread=SPREAD, exchange="average", local_updates=4
)
for name, config in {"alone": alone, "federated": federated}.items():
    print(name)
    print(f"  in worlds nobody has seen: {unseen_return(config):.0f}")
