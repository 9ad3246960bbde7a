"""Two foragers that must lift together: two teams at once, each with one policy and critic (MAPPO)."""

import shoal

config = shoal.preset("Foraging-8x8-2p-2f-coop-v3", steps=100_000, learners=2, reports=5)
for report in shoal.train(config):
    team, first = report.metrics["return_mean"], report.metrics["return_agent0"]
    print(f"step {report.step:>7,}  team {team.mean():5.2f}  of which the first agent {first.mean():5.2f}")
