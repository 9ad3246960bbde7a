"""An exported policy acts as its learner does, whatever the algorithm, the network and the spaces."""

import json
import subprocess
import sys
from typing import Any, NamedTuple

import gymnasium.spaces as gs
import jax
import numpy as np
import onnxruntime
import pytest

import shoal
from shoal.cli.main import main
from shoal.envs.frame_stack import append, fill, stacked_space
from shoal.envs.spaces import adapt_action, adapt_observation
from shoal.learners.context import LearnerContext
from shoal.learners.dqn import DQNConfig
from shoal.learners.ppo import PPOConfig
from shoal.learners.ppo_setup import default_network
from shoal.learners.registry import make_registered
from shoal.learners.sac import SACConfig
from shoal.learners.td3 import TD3Config
from shoal.ops.statistics import Running
from shoal.runs.checkpoint import named_leaves
from shoal.runs.export import play
from shoal.runs.export.files import describe_graph
from shoal.runs.export.policies import make_graph, split_policies, weights_of
from shoal.runs.graphs.graph import Graph, to_model
from shoal.runs.graphs.program import Program, bind
from shoal.runs.graphs.spaces import describe_space
from shoal.runs.policy import clip_action
from shoal.settings import with_settings
from shoal.training.config import TrainConfig
from shoal.types import Box, Discrete, EnvSpec, MultiBinary, MultiDiscrete
from tests.learners.lab import drawn_by_numpy, plainly, random_obs
from tests.runs.own_networks import attending, halved, looking, normed, sorting

PICTURE, GREY = Box((36, 40, 2), 0, 255, "uint8"), Box((36, 36), 0, 255, "uint8")
VECTOR, PUSH = Box((3,)), Box((2, 1), -1.0, np.array([[0.5], [2.0]], np.float32))


class Kind(NamedTuple):
    """A policy to be exported."""

    observation: Any
    action: Any
    algo: Any
    steps: int = 1  # several for policies with a state
    num_frames: int = 1
    agents: int | None = None
    teams: tuple[int, ...] = ()
    network: Any = None  # one's own


def ppo(**settings):
    return with_settings(PPOConfig(), num_envs=4, **{"hidden": (8,), "norm_obs": True} | settings)


def masked(num, **parts):
    return {"obs": VECTOR, "action_mask": Box((num,), 0.0, 1.0), **parts}


OFF = {"num_envs": 2, "hidden": (8,), "buffer_size": 8, "learning_starts": 2, "norm_obs": True}
OU = {"exploration.kind": "ou"}
KINDS = {
    "discrete": Kind(VECTOR, Discrete(4), ppo(activation="silu")),
    "multi-discrete": Kind(masked(5), MultiDiscrete((2, 3)), ppo(activation="elu")),
    "multi-binary": Kind(masked(3), MultiBinary(3), ppo(activation="leaky_relu")),
    "continuous": Kind(VECTOR, PUSH, ppo(split_start=1)),
    "unbounded": Kind(Box((2, 2)), Box((2,)), ppo(hidden=())),
    "parts": Kind({"ear": VECTOR, "foot": VECTOR}, Discrete(3), ppo(split_keys=("foot",))),
    "nature": Kind({"ear": VECTOR, "eye": PICTURE}, Discrete(4), ppo(activation="relu")),
    "impala": Kind(PICTURE, Discrete(4), ppo(**{"network.images": "impala"})),
    "pixels": Kind(PICTURE, Discrete(4), ppo(**{"network.images": "mlp"})),
    "lstm": Kind(VECTOR, PUSH, ppo(memory="lstm", memory_size=4), steps=30),
    "gru": Kind(masked(4), Discrete(4), ppo(memory="gru", memory_size=4, hidden=()), steps=30),
    "stack": Kind(masked(3, eye=GREY), Discrete(3), ppo(), steps=8, num_frames=3),
    "curiosity": Kind(VECTOR, Discrete(3), ppo(curiosity=True)),
    "own": Kind(VECTOR, Discrete(4), ppo(), network=normed),
    "own, parts": Kind({"ear": VECTOR, "foot": VECTOR}, Box((2,), -1.0, 1.0), ppo(), network=attending),
    "own, picture": Kind(PICTURE, Discrete(4), ppo(), network=looking),
    "td3": Kind(VECTOR, PUSH, with_settings(TD3Config(), **OFF)),
    "td3-ou": Kind(VECTOR, PUSH, with_settings(TD3Config(), **OFF | OU), steps=8),
    "sac": Kind(VECTOR, PUSH, with_settings(SACConfig(), **OFF)),
    "sac-ou": Kind(VECTOR, PUSH, with_settings(SACConfig(), **OFF | OU), steps=8),
    "dqn": Kind(VECTOR, Discrete(5), with_settings(DQNConfig(), **OFF)),
    "dqn-masked": Kind(masked(5), Discrete(5), with_settings(DQNConfig(), **OFF)),
    "team": Kind(VECTOR, Discrete(5), ppo(**{"team.policies": "shared"}), agents=3),
    "teams": Kind(
        masked(5, alive=Box((1,))),
        Discrete(5),
        ppo(memory="gru", memory_size=4, agent_ids=True, curiosity=True),
        steps=8,
        agents=3,
        teams=(0, 1, 0),
    ),
}


class Case:
    """A policy with weights, moments, observations, noise and episode starts, all drawn by NumPy."""

    def __init__(self, kind, rows):
        self.kind, self.rows, self.rng = kind, rows, np.random.default_rng(0)
        self.config = TrainConfig("made-up", kind.algo, frame_stack=kind.num_frames)
        seen = stacked_space(kind.observation, kind.num_frames) if kind.num_frames > 1 else kind.observation
        spec = EnvSpec("made-up", "jax", seen, kind.action, agents=kind.agents, teams=kind.teams)
        network = kind.network
        if network is None and isinstance(kind.algo, PPOConfig):
            network = plainly(default_network(kind.algo))
        self.spec = spec
        self.learner = make_registered(kind.algo, spec, LearnerContext(10, network=network))
        self.state = self.with_moments(drawn_by_numpy(self.learner.init)(jax.random.key(0)))
        shape = (kind.steps, rows, *spec.agent_axis)
        self.obs = self.observe(shape)
        self.starts = self.rng.random(shape[:2]) < 0.2
        self.starts[0] = True
        shapes = jax.eval_shape(lambda: self.learner.draw(jax.random.key(0), (kind.steps, rows)))
        self.noise = jax.tree.map(lambda x: np.float32(self.rng.random(x.shape)), shapes)

        @jax.jit
        def act(state, frames, obs, noise, starts):
            if kind.num_frames > 1:
                obs = frames = append(frames, obs, starts, kind.num_frames)
            action, private = self.learner.act(state, obs, noise, starts)
            return action, state._replace(private=private), frames

        self.act = act

    def with_moments(self, state):
        """Means and deviations far from 0 and 1."""

        def draw(moments):
            mean, square = self.rng.normal(3, 1, moments.mean.shape), self.rng.uniform(1, 9, moments.m2.shape)
            return Running(np.float32(100), np.float32(mean), np.float32(100 * square))

        is_running = lambda x: isinstance(x, Running)
        return state._replace(statistics=jax.tree.map(draw, state.statistics, is_leaf=is_running))

    def observe(self, shape):
        """Random observations; masks of zeros and ones, pictures of different light."""
        obs = random_obs(self.rng, self.kind.observation, shape)
        if isinstance(obs, dict) and "action_mask" in obs:
            obs["action_mask"] = np.float32(self.rng.random(obs["action_mask"].shape) < 0.4)
        light = self.rng.random(shape)  # of pictures; noise of equal light is the same to a network
        shine = lambda x: np.uint8(x * light.reshape(*shape, *[1] * (x.ndim - len(shape))))
        return jax.tree.map(lambda x: shine(x) if x.dtype == np.uint8 else x, obs)

    def jax_actions(self, noise):
        """What the learner does, (T, B, ...), as the environment takes it."""
        num_frames = self.kind.num_frames
        at = lambda tree, t: jax.tree.map(lambda x: x[t], tree)
        state = self.learner.for_evaluation(self.state, self.rows)
        frames, actions = fill(at(self.obs, 0), num_frames) if num_frames > 1 else (), []
        for t in range(self.kind.steps):
            given = (at(self.obs, t), at(noise, t), self.starts[t])
            action, state, frames = self.act(state, frames, *given)
            actions.append(clip_action(self.spec.action, action))
        return np.stack(actions)

    def graph_actions(self, noise, start):
        """What the policies' graphs do, run by what `start` makes of them, (T, B, ...)."""
        state = jax.device_get(self.learner.for_evaluation(self.state, 1))
        actions, values = {}, named_leaves(state)
        for policy in split_policies(self.config, self.spec, weights_of(state)):
            graph = make_graph(self.config, policy, self.kind.observation, noise is not None)
            graph = bind(graph, values)
            agents = policy.agents
            of = lambda x, agents=agents: x if agents is None else x[:, :, list(agents)]
            named = self.obs if isinstance(self.obs, dict) else {"obs": self.obs}
            rows = {name: flat(of(x), agents) for name, x in named.items()}
            each = 1 if agents is None else len(agents)
            if agents:
                ids = np.eye(self.kind.agents, dtype=np.float32)[[*agents]]
                rows["agent_id"] = np.tile(ids, (self.kind.steps, self.rows, 1))
            own = noise[policy.name] if isinstance(noise, dict) else noise
            rows["noise"] = None if own is None else flat(own, agents)
            rows["episode_start"] = np.repeat(self.starts, each, 1)
            found = run_graph(graph, rows, start(graph))
            if agents is None:
                return found
            found = found.reshape(*found.shape[:1], self.rows, each, *found.shape[2:])
            actions |= {agent: found[:, :, i] for i, agent in enumerate(agents)}
        return np.stack([actions[agent] for agent in range(self.kind.agents)], 2)


def flat(x, agents):
    """(T, E, n, ...) -> (T, E n, ...), where there is an axis of agents."""
    return x if agents is None else x.reshape(len(x), -1, *x.shape[3:])


def start_onnx(graph):
    """The outputs of a graph's .onnx file for its inputs, by name, as ONNX Runtime computes them."""
    session = onnxruntime.InferenceSession(to_model(graph, "test"))
    of = [port.about.get("of", port.name) for port in graph.outputs]
    names = [port.name for port in graph.outputs]
    return lambda inputs: dict(zip(of, session.run(names, inputs), strict=True))


def run_graph(graph, rows, play):
    """The actions of a graph step by step, (T, B, ...), with its state passed on."""
    size, actions = rows["episode_start"].shape, []
    states = [port for port in graph.inputs if port.kind == "state"]
    state = {port.name: np.zeros((size[1], *port.shape), port.dtype) for port in states}
    given = [port.name for port in graph.inputs if port.kind != "state"]
    for t in range(size[0]):
        state = play({name: rows[name][t] for name in given} | state)
        actions.append(state.pop("action"))
    return np.stack(actions)


@pytest.mark.parametrize("name", KINDS)
def test_the_graph_acts_as_the_learner(name):
    """In ONNX Runtime and NumPy, greedy and with the same noise: equal choices, real actions within 1e-5."""
    kind = KINDS[name]
    case = Case(kind, rows=6 if kind.steps > 1 else 50)
    zeros = jax.tree.map(np.zeros_like, case.noise)
    for given, noise in ((None, zeros), (case.noise, case.noise)):
        expected = case.jax_actions(noise)
        assert len(np.unique(expected)) > 1
        for start in (start_onnx, Program):
            found = case.graph_actions(given, start)
            assert found.shape == expected.shape
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * isinstance(kind.action, Box))


@pytest.fixture(scope="module")
def exported(demo_folder, tmp_path_factory):
    """The run of the docstrings, and the files of its second learner."""
    run = shoal.load(demo_folder / "runs" / "demo")
    return run, run.export(tmp_path_factory.mktemp("export"), learner=1)


def test_the_files_play_without_shoal(exported):
    """policy.json describes the run; play.py, on its own, acts as the policy in Python does."""
    run, files = exported
    assert [path.name for path in files] == ["policy.onnx", "policy_sampled.onnx", "policy.json", "play.py"]
    folder = files[0].parent
    card = json.loads((folder / "policy.json").read_text())
    said = {name: card[name] for name in ("algo", "learner", "step", "run", "env")}
    env = {"id": "CartPole-v1", "suite": "jax", "options": {}}
    assert said == {"algo": "ppo", "learner": 1, "step": 1024, "run": "demo", "env": env}
    assert card["score"] == pytest.approx(run.metrics["return_mean"][-1], abs=1e-3)
    obs = np.float32(np.random.default_rng(0).normal(size=(100, 4)))
    np.testing.assert_array_equal(play.Policy(folder)({"obs": obs}), run.policy(1)(obs))
    command = [sys.executable, "-W", "error", files[-1], "--episodes", "2", "--sampled"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed.startswith("CartPole-v1: return ")
    assert "in 2 episodes" in printed


def test_the_command_writes_the_mean_where_it_is_told(exported, tmp_path, capsys):
    run, _ = exported
    assert main(["export", str(run.folder), "--learner", "mean", "--out", str(tmp_path / "out")]) == 0
    card = json.loads((tmp_path / "out" / "policy.json").read_text())
    assert (card["learner"], card["score"]) == ("mean", None)
    assert capsys.readouterr().out.count("wrote ") == 4
    obs = np.float32(np.random.default_rng(0).normal(size=(100, 4)))
    np.testing.assert_array_equal(play.Policy(tmp_path / "out")({"obs": obs}), run.policy("mean")(obs))


def test_a_policy_with_a_state_starts_anew_after_reset(tmp_path):
    """play.py passes the state on, and zeros are not needed at the start of an episode."""
    case = Case(KINDS["lstm"], rows=2)
    (policy,) = split_policies(case.config, case.spec, weights_of(case.state))
    graph = bind(make_graph(case.config, policy, VECTOR, False), named_leaves(case.state))
    (tmp_path / "policy.onnx").write_bytes(to_model(graph, "test"))
    card = {"policies": [{"name": "policy", "greedy": describe_graph("policy.onnx", graph)}]}
    (tmp_path / "policy.json").write_text(json.dumps(card))
    player, actions = play.Policy(tmp_path), []
    for t in (0, 1, 0, 1):
        if len(actions) == 2:
            player.reset()
        actions.append(player({"obs": case.obs[t]}))
    np.testing.assert_array_equal(actions[:2], actions[2:])
    assert np.abs(player({"obs": case.obs[1]}) - actions[1]).max() > 0


SPACES = [
    gs.Box(-1, 1, (3,)),
    gs.Box(-1, 1, ()),
    gs.Box(0, 255, (3, 40, 40), np.uint8),
    gs.Discrete(4, start=2),
    gs.MultiDiscrete([3, 2]),
    gs.MultiBinary(3),
    gs.Dict({"a": gs.Box(-1, 1, (2,)), "b": gs.Tuple([gs.Discrete(3), gs.Box(0, 255, (4,), np.uint8)])}),
]


@pytest.mark.parametrize("space", SPACES, ids=lambda space: type(space).__name__)
def test_play_sees_what_the_learner_saw(space):
    """Gymnasium's observations become the same numbers in play.py as in training."""
    space.seed(0)
    raw = space.sample()
    _, convert = adapt_observation(space, "test")
    batch = jax.tree.map(lambda x: np.asarray(x)[None], raw)
    expected = convert(batch)
    found = play.observe(space, raw, {})
    assert found.keys() == (expected.keys() if isinstance(expected, dict) else {"obs"})
    for name, part in found.items():
        np.testing.assert_array_equal(part, (expected[name] if isinstance(expected, dict) else expected)[0])


@pytest.mark.parametrize(
    ("space", "action"),
    [
        (gs.Discrete(4, start=-1), np.int64(2)),
        (gs.MultiDiscrete([[3, 2]], start=[[1, 0]]), np.array([2, 0])),
        (gs.MultiBinary([2, 2]), np.array([1, 0, 0, 1])),
        (gs.Box(1, 3, (2,), np.int32), np.array([0, 2])),
        (gs.Box(-1, 1, (2,), np.float64), np.float32([0.5, -0.5])),
    ],
    ids=lambda x: type(x).__name__,
)
def test_play_acts_as_the_learner_did(space, action):
    """Our actions become the environment's own in play.py as in training."""
    _, convert = adapt_action(space, "test")
    made = play.to_env(space, action)
    np.testing.assert_array_equal(made, convert(np.asarray(action)[None])[0])
    assert space.contains(made)


def test_play_gives_each_agent_its_policy():
    """Two policies, three agents with observations of different lengths, in an environment of tuples."""

    class Policy(NamedTuple):
        card: dict
        inputs: list

        def __call__(self, observation):
            return observation["obs"].sum(-1)

    class Env(NamedTuple):
        observation_space: Any = gs.Tuple([gs.Box(0, 9, (1,)), gs.Box(0, 9, (2,)), gs.Box(0, 9, (2,))])
        action_space: Any = gs.Tuple([gs.Discrete(9)] * 3)

    port = {"name": "obs", "kind": "observation"}
    policies = [Policy({"agents": agents}, [port]) for agents in ([0, 2], [1])]
    raw = tuple(np.float32(x) for x in ([1], [2, 3], [4, 0]))
    assert play.act(policies, play.see(Env(), raw, {}, (2,))) == [1, 5, 4]


def test_what_cannot_be_exported_is_told_in_a_line(exported, monkeypatch):
    run, _ = exported
    with pytest.raises(shoal.ShoalError, match="one learner can play at a time"):
        run.export(learner="all")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(shoal.ShoalError, match=r"onnx is not installed; pip install 'shoal\[onnx\]'"):
        run.export()
    case = Case(KINDS["discrete"], rows=1)
    (policy,) = split_policies(case.config, case.spec, weights_of(case.state))
    other = policy._replace(state=policy.state._replace(params=lambda obs: obs))
    with pytest.raises(shoal.ShoalError, match="cannot export a function: its leaves are not arrays"):
        make_graph(case.config, other, VECTOR, False)
    own = {sorting: "a Sorting: sort has", halved: "a Halved: convert_element_type of bfloat16 has"}
    for network, why in own.items():
        case = Case(Kind(VECTOR, Discrete(4), ppo(), network=network), rows=1)
        with pytest.raises(shoal.ShoalError, match=f"cannot export {why} no form in ONNX here"):
            case.graph_actions(None, Program)
    graph = Graph()
    x = graph.add_input("action", "observation", "float32", ())
    with pytest.raises(shoal.ShoalError, match="cannot export a policy that observes 'action'"):
        graph.add_output("action", "action", "float32", (), x)


def test_bounds_in_the_description():
    """One number where all are equal, null where there is none."""
    box = Box((2,), np.array([-np.inf, 0.5]), 2.0)
    said = describe_space(box)
    assert said == {"kind": "Box", "shape": [2], "dtype": "float32", "low": [None, 0.5], "high": 2.0}
    assert describe_space(MultiDiscrete((2, 3))) == {"kind": "MultiDiscrete", "nums": [2, 3]}
    assert describe_space(MultiBinary(3)) == {"kind": "MultiBinary", "num": 3}
