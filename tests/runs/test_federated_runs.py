"""Federations as settings and as folders: read, written, refused, trained, stopped and opened again."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from shoal.distributed.mesh import make_mesh
from shoal.envs.registry import make
from shoal.errors import ShoalError
from shoal.exchanges.config import ExchangeConfig, ExchangeContext
from shoal.exchanges.registry import make_exchange
from shoal.learners.context import LearnerContext
from shoal.learners.ppo import PPOConfig, ppo
from shoal.runs.config import (
    differences,
    from_settings,
    read_exchanges,
    read_settings,
    to_settings,
    write_config,
)
from shoal.runs.evaluation import evaluation_worlds, own_world
from shoal.runs.learners import choose_learners, load_learners
from shoal.runs.metrics import read_metrics
from shoal.runs.session import open_session
from shoal.settings import with_settings
from shoal.training.config import TrainConfig
from shoal.training.parts import make_exchange_for, worlds_of
from shoal.types import Box, Discrete, EnvSpec

SMALL = {
    "num_envs": 2,
    "num_steps": 8,
    "num_minibatches": 1,
    "update_epochs": 1,
    "hidden": (4,),
    "learning_rate": 0.05,
}
MATRIX = {"comm_matrix": {"0": {"1": 100}, "1": {"0": 1, "2": 0.5}, "3": {"3": 2}}}
HEED = ExchangeConfig(exchange="neighbours", local_updates=1, comm_matrix=MATRIX)
MEET = with_settings(ExchangeConfig(exchange="average", local_updates=2, parts=("actor",)), clip=1.0)
WORLDS = {str(i): {"length": 0.5 + 0.1 * i, "gravity": 9.8 + i} for i in range(4)}
PLAIN = TrainConfig("jax:CartPole-v1", algo=PPOConfig(**SMALL), steps=64, reports=4, learners=4)
CONFIGS = {
    "none": PLAIN,
    "one": replace(PLAIN, exchanges=(HEED,), env_params=WORLDS),
    "one with parts": replace(PLAIN, exchanges=(MEET,), env_spread=0.3),
    "several": replace(PLAIN, exchanges=(HEED, MEET), env_params=list(WORLDS.values())),
    "every setting": replace(
        PLAIN,
        algo=with_settings(
            PPOConfig(),
            **SMALL,
            prox_coef=0.1,
            comm_form="mixture",
            comm_direction="reverse",
            objective="mdpo",
        ),
        exchanges=(
            with_settings(MEET, server="adam", server_lr=0.1, weights="returns", compress="top-k", keep=0.5),
            with_settings(
                ExchangeConfig(exchange="gossip", topology="random-regular", degree=3),
                noise_multiplier=1.0,
                clip=2.0,
            ),
            with_settings(
                ExchangeConfig(exchange="krum", bad=1, participation=0.5), attack="sign-flip", attackers=1
            ),
        ),
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_configuration_comes_back_from_its_file(name, tmp_path):
    config = CONFIGS[name]
    assert from_settings(to_settings(config)) == config
    write_config(tmp_path / "config.yaml", config)
    back = from_settings(read_settings(tmp_path / "config.yaml"))
    assert back == config
    assert differences(config, back) == []


def test_an_exchange_is_written_flat_and_several_as_a_list():
    flat, several, none = (to_settings(CONFIGS[name]) for name in ("one", "several", "none"))
    assert flat["exchange"] == "neighbours"
    assert flat["comm_matrix"] == MATRIX
    assert flat["local_updates"] == 1
    assert none["exchange"] == "none"
    assert several["exchange"] == [
        {"exchange": "neighbours", "local_updates": 1, "comm_matrix": MATRIX},
        {"exchange": "average", "local_updates": 2, "parts": ("actor",), "privacy": {"clip": 1.0}},
    ]


def test_a_matrix_and_worlds_are_read_from_their_files(tmp_path):
    for name, text in (("m.json", '{"comm_matrix": {"0": {"1": 100}}}'), ("w.json", '[{"length": 0.7}, {}]')):
        (tmp_path / name).write_text(text)
    settings = {"env": "CartPole-v1", "learners": 2, "env_params": str(tmp_path / "w.json")}
    one = {"exchange": "neighbours", "comm_matrix": str(tmp_path / "m.json")}
    for config in (from_settings(settings | one), from_settings(settings | {"exchange": [one]})):
        assert config.exchanges[0].comm_matrix == {"comm_matrix": {"0": {"1": 100}}}
        assert config.env_params == [{"length": 0.7}, {}]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"exchange": "telepathy"}, "unknown exchange 'telepathy'; choose from none, gradients, average"),
        ({"exchange": [{"exchange": "telepathy"}]}, "unknown exchange 'telepathy'"),
        ({"exchange": [{"exchange": "average", "tempo": 3}]}, "unknown setting tempo"),
        ({"exchange": "average", "tempo": 3}, "unknown setting tempo"),
        ({"local_updates": 3}, "local_updates without an exchange: choose one"),
        ({"exchange": "none", "topology": "star"}, "topology without an exchange"),
        (
            {"exchange": [{"exchange": "average"}], "local_updates": 3},
            "local_updates must be inside one of the",
        ),
        ({"exchange": 3}, "exchange must be a name, or a list"),
        ({"exchange": ["average"]}, "exchange must be a name, or a list"),
        ({"exchange": None}, "exchange must be a name, or a list"),
        (
            {"exchange": "average", "learners": 1},
            "an exchange needs at least 2 learners, not 1; use --learners N",
        ),
        ({"prox_coef": 0.1}, "prox_coef needs an exchange of parameters"),
        ({"prox_coef": 0.1, "exchange": "neighbours"}, "prox_coef needs an exchange of parameters"),
        (
            {"exchange": "average", "local_updates": 0},
            "local_updates must be a whole number from 1",
        ),
        (
            {"exchange": "average", "local_updates": "often"},
            "local_updates must be a whole number from 1 to 1,000,000,000, not 'often'",
        ),
        ({"exchange": "average", "parts": 3}, "parts must be a list of at most 64 texts, not 3"),
        ({"exchange": "average", "noise_multiplier": 1.0}, "privacy.noise_multiplier needs privacy.clip"),
        (
            {"exchange": "average", "noise_multiplier": 1.0, "clip": 1.0, "share_moments": True},
            "noise does not cover the optimiser's moments",
        ),
        (
            {"exchange": "average", "noise_multiplier": 1.0, "clip": 1.0, "share_statistics": True},
            "noise does not cover running statistics",
        ),
        ({"exchange": "average", "attack": "zero"}, "attack zero needs attack.count"),
        (
            {"exchange": "gossip", "server": "adam"},
            "exchange gossip does not use server",
        ),
        ({"exchange": "neighbours", "comm_matrix": "nowhere.json"}, "nowhere.json: there is no such file"),
        ({"evolve": 3}, "evolve must be a list of at most 64 texts, not 3"),
        (
            {"evolve": ["target_kl=log 1e-3 1e-1"]},
            "evolve target_kl has no effect; it needs a target_kl to begin",
        ),
        ({"evolve": ["kl_goal=log 1e-3 1e-1"]}, "evolve kl_goal has no effect; it needs objective kl"),
        ({"evolve": ["comm_penalty_coeff"]}, "has no effect; it needs an exchange that penalises"),
        ({"algo": "td3", "evolve": ["prox_coef"]}, "it needs a prox_coef to begin with"),
        ({"algo": "td3", "evolve": ["actor_learning_rate"]}, "it needs an actor_learning_rate to begin with"),
        ({"schedules": ["intrinsic_coef=linear(0)"]}, "has a schedule but no effect without curiosity"),
        (
            {"exchange": [{"exchange": "truncation"}, {"exchange": "winner"}]},
            "several exchanges select learners; keep one of them",
        ),
        ({"schedule": [[0, {"gamma": 0.9}], [9, {}]]}, "hyper_plan is a list of"),
        ({"schedule": [[5, {"gamma": 0.9}]]}, "hyper_plan is a list of"),
        ({"env_spread": 0.1, "env_params": []}, "env_spread and env_params do not go together"),
    ],
)
def test_what_makes_no_sense_is_refused(settings, message):
    with pytest.raises(ShoalError, match=message):
        from_settings({"env": "CartPole-v1", "learners": 4} | settings).check()


@pytest.mark.parametrize(
    "setting",
    [{"topology": "hexagon"}, {"server": "sgd"}, {"compress": "zip"}, {"weights": "luck"}, {"attack": "dos"}],
)
def test_a_choice_that_is_not_offered_is_refused(setting):
    with pytest.raises(ShoalError, match=next(iter(setting.values()))):
        from_settings({"env": "CartPole-v1", "learners": 4, "exchange": "gossip", "attackers": 1} | setting)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (
            {"exchange": "neighbours", "clip": 1.0, "noise_multiplier": 1.0},
            "noise does not cover the policies",
        ),
        ({"exchange": "gradients", "clip": 1.0, "noise_multiplier": 1.0}, "does not use privacy.clip"),
        ({"exchange": "average", "comm_matrix": [[0, 1], [1, 0]]}, "comm_matrix"),
    ],
)
def test_a_setting_that_would_do_nothing_is_refused(settings, name):
    with pytest.raises(ShoalError, match=name):
        from_settings({"env": "CartPole-v1", "learners": 2} | settings)


def test_one_hidden_layer_may_be_a_number():
    assert from_settings({"env": "CartPole-v1", "hidden": 64}).algo.hidden == (64,)
    with pytest.raises(ShoalError, match="num_envs must be a whole number from 1 to 1,048,576, not 'many'"):
        from_settings({"env": "CartPole-v1", "num_envs": "many"})


@pytest.mark.parametrize("listed", [[{"exchange": "none"}], [{}], [{"exchange": "none", "local_updates": 3}]])
def test_a_list_with_no_exchange_in_it_is_refused(listed):
    with pytest.raises(ShoalError, match="an exchange in the list has no name"):
        read_exchanges({"exchange": listed})


@pytest.mark.parametrize(
    ("exchange", "message"),
    [
        ({"exchange": "average", "participation": 0.0}, "participation must be a number above 0"),
        ({"exchange": "average", "parts": ("brain",)}, "no parameters are called brain; there are"),
        ({"exchange": "average", "parts": ("actor",), "share_moments": True}, "share_moments needs all"),
        (
            {"exchange": "average", "attack": "zero", "attackers": 9},
            "9 attackers are more than the 4 learners",
        ),
        ({"exchange": "krum", "bad": 3}, "krum"),
        (
            {"exchange": "neighbours", "comm_matrix": {"comm_matrix": {"4": {"1": 1}}}},
            "with 4 learners 0 to 3, found 4",
        ),
        ({"exchange": "gossip", "comm_matrix": [[1, 2], [3, 4]]}, "4 learners need 4 rows"),
        ({"exchange": "gossip", "topology": "random-regular", "degree": 4}, "does not exist"),
    ],
)
def test_what_the_learners_do_not_fit_is_refused(exchange, message):
    spec = EnvSpec("two choices", "jax", Box((3,)), Discrete(2))
    learner = ppo(PPOConfig(**SMALL), spec, LearnerContext(4))
    cohort = jax.eval_shape(jax.vmap(learner.init), jax.random.split(jax.random.key(0), 4))

    def begin(cohort):
        config = with_settings(ExchangeConfig(), **exchange)
        return make_exchange((config,), ExchangeContext(4, learner, spec)).init(cohort)

    with pytest.raises(ShoalError, match=message):
        jax.eval_shape(begin, cohort)


def test_another_exchange_is_another_run():
    (line,) = differences(
        CONFIGS["one"], replace(CONFIGS["one"], exchanges=(replace(HEED, local_updates=9),))
    )
    assert line == "local_updates: 1 -> 9"
    assert any(line.startswith("exchange: ") for line in differences(CONFIGS["none"], CONFIGS["one"]))


@pytest.fixture(scope="module")
def several(go_on, tmp_path_factory):
    """A run of two exchanges in worlds that were given; and the same, stopped after two of four updates."""
    whole, halves = (tmp_path_factory.mktemp(name) for name in ("whole", "halves"))
    go_on(CONFIGS["several"], whole)
    assert go_on(CONFIGS["several"], halves, until=32)[0] is None
    assert go_on(from_settings(read_settings(halves / "config.yaml")), halves)[0] == 32
    return whole, halves


def test_several_exchanges_train_and_leave_their_metrics(several):
    table = read_metrics(several[0])
    assert table["step"].tolist() == [step for step in (16, 32, 48, 64) for _ in range(4)]
    assert {"disagreement/params", "disagreement/policy", "exchange/bytes", "loss/neighbours"} <= table.keys()
    paid = table["loss/neighbours"].reshape(4, 4)  # by report and learner
    assert not paid[0].any()  # nobody was heard yet
    assert not paid[:, 2].any()  # learner 2 listens to nobody
    assert (paid[1:, 0] > 0).all()
    sent = table["exchange/bytes"].reshape(4, 4)
    assert (np.diff(sent, axis=0) >= 0).all()
    assert (sent[:, 3] > 0).tolist() == [
        False,
        True,
        True,
        True,
    ]  # nobody hears 3 but the server, every second time
    assert (table["disagreement/params"] > 0).all()


def test_a_stopped_federation_ends_as_if_it_had_not_been_stopped(several):
    """What was heard and how long ago the learners met are saved with them."""
    whole, halves = several
    one, two = ((folder / "checkpoints" / "step_000000064.safetensors").read_bytes() for folder in several)
    assert one == two
    ours, theirs = read_metrics(whole), read_metrics(halves)
    for name in ours.keys() - {"seconds", "steps_per_second", "steps_per_second_compiled"}:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


def test_all_of_a_federation_are_the_learners_and_their_mean(several):
    opened = load_learners(several[0])
    names, cohort = choose_learners(opened, "all")
    assert names == [0, 1, 2, 3, "mean"]
    mean = lambda x: np.testing.assert_allclose(x[4], np.mean(x[:4], 0), rtol=1e-5, atol=1e-6)
    jax.tree.map(mean, cohort.params)
    alone = opened._replace(config=replace(opened.config, exchanges=()))
    assert choose_learners(alone, "all")[0] == [0, 1, 2, 3]


def test_learners_are_evaluated_in_worlds_that_differ(several):
    """Each in its own, all in all of theirs, and in worlds between them that nobody has seen."""
    opened = load_learners(several[0])
    names, _ = choose_learners(opened, "all")
    visited = evaluation_worlds(opened, names, 6, each=False)
    assert [*visited] == ["own", "seen", "unseen"]
    lengths = np.float32([0.5, 0.6, 0.7, 0.8])
    np.testing.assert_allclose(visited["own"].length[:4], np.repeat(lengths[:, None], 6, 1))
    np.testing.assert_allclose(visited["seen"].length, np.tile(lengths[[0, 1, 2, 3, 0, 1]], (5, 1)))
    fresh = visited["unseen"].length
    assert ((fresh >= 0.5) & (fresh <= 0.8)).all()
    assert len(np.unique(fresh)) == 6
    assert [*evaluation_worlds(opened, names, 6, each=True)][3:] == [f"world {k}" for k in range(4)]
    same = opened._replace(config=replace(opened.config, env_params=None))
    assert evaluation_worlds(same, names, 6, each=False) is None


def test_a_learners_own_world_is_its_own(several):
    opened = load_learners(several[0])
    assert [round(float(own_world(opened, k).gravity), 4) for k in range(4)] == [9.8, 10.8, 11.8, 12.8]
    assert own_world(opened, "mean") is None
    shifted = opened._replace(config=replace(opened.config, first_member=1, learners=3))
    assert float(own_world(shifted, 0).gravity) == pytest.approx(10.8)


def test_drawn_worlds_are_evaluated_in_worlds_drawn_alike(several):
    config = replace(PLAIN, env_spread=0.3)
    opened = load_learners(several[0])._replace(config=config)
    visited = evaluation_worlds(opened, [2], 50, each=False)
    own = worlds_of(config, opened.recipe.spec)
    np.testing.assert_array_equal(visited["own"].length, np.full((1, 50), own.length[2]))
    fresh = visited["unseen"]
    assert not np.isin(fresh.length, own.length).any()
    assert len(np.unique(fresh.length)) > 25  # some are cut off at the bounds


@pytest.mark.parametrize("setting", [{"evolve": ["luck=log 1e-5 1e-2"]}, {"schedule": [[0, {"luck": 0.9}]]}])
def test_hyperparameters_the_learner_does_not_have_are_refused_before_anything_is_written(setting, tmp_path):
    config = from_settings({"env": "jax:CartPole-v1", "learners": 2} | setting)
    with pytest.raises(ShoalError, match=r"^luck cannot change while training; these can: learning"):
        open_session(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_learners_near_what_they_received_received_their_encoder_too():
    picture = EnvSpec("Picture", "jax", Box((40, 40, 3), 0, 255, "uint8"), Discrete(3))
    parts = ExchangeConfig("average", parts=("actor", "critic:2"))
    config = replace(PLAIN, algo=PPOConfig(**SMALL, prox_coef=0.1), exchanges=(parts,))
    mesh = make_mesh(PLAIN.learners)
    with pytest.raises(ShoalError, match="prox_coef needs an exchange of the encoder, too"):
        make_exchange_for(config, ppo(config.algo, picture, LearnerContext(1)), picture, mesh, 1)
    vector = make("CartPole-v1").spec
    assert make_exchange_for(config, ppo(config.algo, vector, LearnerContext(1)), vector, mesh, 1)
