"""Play the policy of this folder with Gymnasium and ONNX Runtime: python play.py --episodes 10.

In a program of your own, without Gymnasium:

    policy = Policy(folder="exported")
    policy.reset()
    action = policy({"obs": observations})  # (B, ...) per name; policy.json lists them
"""

import argparse
import json
from pathlib import Path

import gymnasium as gym
import numpy as np
import onnxruntime

FOLDER = Path(__file__).resolve().parent


def make_env(card, render):
    """The environment that the policy was trained in; change this for another one."""
    env = card["env"]
    try:
        return gym.make(env["id"], render_mode="human" if render else None, **env["options"])
    except (gym.error.Error, TypeError) as error:
        raise SystemExit(f"Gymnasium cannot make {env['id']}: {error}\nchange make_env in play.py") from error


class Policy:
    """Acts in B rows at once, environments or agents, and keeps their state from call to call."""

    def __init__(self, folder=FOLDER, name=None, sampled=False, seed=0):
        card = json.loads((Path(folder) / "policy.json").read_text())
        self.card = next(one for one in card["policies"] if name in (None, one["name"]))
        graph = self.card["sampled" if sampled else "greedy"]
        file, providers = Path(folder) / Path(graph["file"]).name, ["CPUExecutionProvider"]
        self.session = onnxruntime.InferenceSession(file, providers=providers)
        self.inputs, self.rng = graph["inputs"], np.random.default_rng(seed)
        self.outputs = [(output.get("of", output["name"]), output["name"]) for output in graph["outputs"]]
        self.reset()

    def reset(self, ended=None):
        """Start new episodes: in all rows, or where `ended` (B,) is true."""
        if ended is None:
            self.state, self.starts = {}, True
        else:
            self.starts = self.starts | np.asarray(ended)

    def __call__(self, observation):
        """Actions (B, ...) for observations by name, (B, ...) each."""
        rows = len(next(iter(observation.values())))
        if not self.state:
            self.state = {x["name"]: zeros(rows, x) for x in self.inputs if x["kind"] == "state"}
        feed = {x["name"]: self.fill(x, rows, observation) for x in self.inputs}
        found = self.session.run([name for _, name in self.outputs], feed)
        results = {of: value for (of, _), value in zip(self.outputs, found, strict=True)}
        self.starts, action = False, results.pop("action")
        self.state = results
        return action

    def fill(self, port, rows, observation):
        """The value of one input."""
        match port["kind"]:
            case "observation":
                return np.asarray(observation[port["name"]], port["dtype"])
            case "state":
                return self.state[port["name"]]
            case "episode_start":
                return np.broadcast_to(self.starts, rows)
        draw = getattr(self.rng, port["distribution"])
        return draw(size=(rows, *port["shape"])).astype(port["dtype"])


def zeros(rows, port):
    return np.zeros((rows, *port["shape"]), port["dtype"])


def observe(space, raw, info):
    """A Gymnasium observation by name: {"obs": ...}, or the parts of a Dict or a Tuple."""
    parts = dict(leaves(space, raw))
    mask = info.get("action_mask") if isinstance(info, dict) else None
    return parts if mask is None or "action_mask" in parts else parts | {"action_mask": mask}


def leaves(space, raw, name=""):
    """The parts of an observation by joined names: one-hot choices, images with their channels last."""
    match space:
        case gym.spaces.Dict() | gym.spaces.Tuple():
            spaces = space.spaces if isinstance(space, gym.spaces.Dict) else dict(enumerate(space.spaces))
            for key, part in spaces.items():
                yield from leaves(part, raw[key], f"{name}/{key}" if name else str(key))
            return
        case gym.spaces.Discrete() | gym.spaces.MultiDiscrete():
            raw = gym.spaces.flatten(space, raw)
        case gym.spaces.Box() if raw.dtype == np.uint8 and raw.ndim == 3 and raw.shape[0] < raw.shape[2]:
            raw = raw.transpose(1, 2, 0)
    yield name or "obs", np.atleast_1d(np.asarray(raw))


def to_env(space, action):
    """An action as Gymnasium's space has it; here all choices count from zero."""
    match space:
        case gym.spaces.Discrete():
            return int(action) + space.start
        case gym.spaces.MultiDiscrete():
            action = action.reshape(space.shape) + space.start
        case gym.spaces.Box() if np.issubdtype(space.dtype, np.integer):
            action = action.reshape(space.shape) + space.low
    return action.astype(space.dtype).reshape(space.shape)


def see(env, raw, info, shape):
    """The observations of each agent, by name; of a single one unless spaces are tuples."""
    if not isinstance(env.action_space, gym.spaces.Tuple):
        return [observe(env.observation_space, raw, info)]
    seen = [observe(space, part, {}) for space, part in zip(env.observation_space, raw, strict=True)]
    flat = [np.concatenate([np.ravel(part) for part in parts.values()]) for parts in seen]
    padded = [np.pad(x, (0, int(np.prod(shape)) - len(x))).reshape(shape) for x in flat]
    return [{"obs": x, "agent_id": one} for x, one in zip(padded, np.eye(len(padded)), strict=True)]


def act(policies, seen):
    """The action of each agent."""
    chosen = {}
    for policy in policies:
        agents = policy.card["agents"] or [0]
        names = [port["name"] for port in policy.inputs if port["kind"] == "observation"]
        actions = policy({name: np.stack([seen[agent][name] for agent in agents]) for name in names})
        chosen |= zip(agents, actions, strict=True)
    return [chosen[agent] for agent in sorted(chosen)]


def play(env, policies, seed):
    """The return of one episode; of several agents, that of all together."""
    for policy in policies:
        policy.reset()
    shape = next(port["shape"] for port in policies[0].inputs if port["kind"] == "observation")
    raw, info = env.reset(seed=seed)
    total, over, space = 0.0, False, env.action_space
    while not over:
        actions = act(policies, see(env, raw, info, shape))
        if isinstance(space, gym.spaces.Tuple):
            action = tuple(map(to_env, space, actions))
        else:
            action = to_env(space, actions[0])
        raw, reward, terminated, truncated, info = env.step(action)
        total, over = total + float(np.sum(reward)), terminated or truncated
    return total


def main():
    parser = argparse.ArgumentParser(description="Play the policy of this folder.")
    parser.add_argument("--episodes", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sampled", action="store_true", help="sample actions as in training")
    parser.add_argument("--render", action="store_true", help="show a window")
    options = parser.parse_args()
    card = json.loads((FOLDER / "policy.json").read_text())
    names = [policy["name"] for policy in card["policies"]]
    policies = [Policy(FOLDER, name, options.sampled, options.seed) for name in names]
    env = make_env(card, options.render)
    returns = [play(env, policies, options.seed + episode) for episode in range(options.episodes)]
    print(f"{card['env']['id']}: return {np.mean(returns):.1f} in {len(returns)} episodes", end="")
    print(f" ({np.min(returns):.1f} to {np.max(returns):.1f})")


if __name__ == "__main__":
    main()
