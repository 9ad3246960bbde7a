"""Train one learner in a folder, then evaluate it, as `shoal train` and `shoal eval` do."""

import shoal

run = shoal.run("CartPole-v1", steps=50_000, seed=1, folder="runs/single")
print(run)
for row in run.evaluate(episodes=20):
    print(f"learner {row.learner}: return {row.return_mean:.1f} over {row.episodes} episodes")
print("video:", run.video("runs/single/cartpole.gif"))
