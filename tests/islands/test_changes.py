"""What leaves an organisation is altered before it leaves, and arrives as in one program."""

import jax
import numpy as np
import pytest

import shoal
from shoal.errors import ShoalError
from shoal.exchanges import channels
from shoal.islands.changes import ChangesMeeting, pack, shapes_of, unpack
from shoal.islands.flower.settings import Organisation, read_federation, read_organisation
from shoal.islands.flower.work import OUTBOX, Order, read_outbox, serve
from shoal.islands.messages import BadMessage, decode, encode
from shoal.islands.plan import make_plan

SMALL = {
    "organisations": "north south",
    "shoal.env": "CartPole-v1",
    "shoal.num_envs": 2,
    "shoal.num_steps": 8,
    "shoal.num_minibatches": 2,
    "shoal.update_epochs": 2,
    "shoal.hidden": (8,),
    "shoal.seed": 3,
    "shoal.norm_obs": True,
    "shoal.steps": 64,
    "shoal.exchange": "average",
    "shoal.local_updates": 1,
}


class Crowd:
    """A federation of two without Flower: what its server and its organisations do, in one process."""

    def __init__(self, folder, **settings):
        given = SMALL | {f"shoal.{name.replace('__', '.')}": x for name, x in settings.items()}
        self.federation = read_federation(given)
        plan = make_plan(self.federation.config)
        self.meeting = ChangesMeeting(plan, "test", self.federation.outgoing)
        self.organisations = [Organisation(folder / name) for name in self.federation.organisations]

    def answer(self, island):
        return decode(encode(self.meeting.answer(island, self.federation.members(island))))

    def ask(self, island, answer=None, train=True, evaluate=0):
        order = Order(self.federation.organisations[island], island, train, evaluate)
        data = serve(self.federation, self.organisations[island], answer or self.answer(island), order)
        return decode(data)

    def params(self):
        return np.concatenate([np.ravel(x) for x in jax.tree.leaves(self.meeting.state.models.params)])


def statistics_of(path):
    """How many samples an organisation's own statistics are of."""
    kept = read_outbox(path).kept
    return float(
        next(x for name, x in kept.items() if name.startswith("kept/statistics") and "count" in name)[0]
    )


def flat(params):
    return np.concatenate([np.ravel(x) for x in jax.tree.leaves(params)])


@pytest.mark.slow
def test_a_federation_has_the_parameters_of_one_program(tmp_path):
    settings = {"compress": "top-k", "compress__keep": 0.25}
    crowd = Crowd(tmp_path, **settings)
    for _ in range(2):
        held = crowd.meeting.meet([crowd.ask(0), crowd.ask(1)])
        assert not held.left_out
    known = {name.removeprefix("shoal."): x for name, x in SMALL.items() if name.startswith("shoal.")}
    given = (
        known | {name.replace("__", "."): x for name, x in settings.items()} | {"learners": 2, "steps": 32}
    )
    config = shoal.preset(given.pop("env"), **given, anneal_to=64)
    *_, report = shoal.train(config)
    expected = flat(report.state.cohort.params)
    np.testing.assert_allclose(crowd.params(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("kind", "keep"), [("int8", 1.0), ("top-k", 0.3), ("none", 1.0)])
def test_a_compressed_change_takes_the_bytes_that_are_counted(kind, keep):
    change = np.random.default_rng(0).normal(size=(2, 50)).astype(np.float32)
    compressor = channels.COMPRESSORS[kind](keep)
    sent = np.asarray(compressor.apply(change))
    packed = pack(kind, keep, sent)
    assert sum(x.nbytes for x in packed.values()) == 2 * compressor.message_bytes(50)
    np.testing.assert_allclose(unpack(kind, packed, 50), sent, atol=1e-6)
    like = shapes_of(kind, keep, 2, 50)
    assert {name: (x.shape, x.dtype) for name, x in packed.items()} == {
        name: (x.shape, x.dtype) for name, x in like.items()
    }


@pytest.mark.slow
def test_with_noise_nothing_else_leaves(tmp_path, capsys):
    crowd = Crowd(tmp_path, privacy__clip=0.5, privacy__noise_multiplier=2.0)
    first = crowd.ask(0)
    assert set(first.arrays) == {"change/value", "iteration"}
    size = first.arrays["change/value"].shape[1]
    assert 0.6 < first.arrays["change/value"].std() < 1.4  # 2 x 0.5, and a change of at most 0.5 in all
    held = crowd.meeting.meet([first, crowd.ask(1)])
    assert held.present.all()
    assert np.isfinite(crowd.params()).all()
    assert not jax.tree.leaves(crowd.meeting.state.models.statistics)[
        0
    ].any()  # the server knows of no sample
    seen = lambda: statistics_of(tmp_path / "north" / "test" / OUTBOX)
    before = seen()
    crowd.ask(0)
    assert seen() > before > 0
    assert "epsilon" in capsys.readouterr().out
    assert size == crowd.params().size // 2


def test_the_same_question_has_the_same_answer(tmp_path):
    crowd = Crowd(tmp_path, privacy__clip=0.5, privacy__noise_multiplier=2.0)
    answer = crowd.answer(0)
    assert encode(crowd.ask(0, answer)) == encode(crowd.ask(0, answer))
    assert read_outbox(tmp_path / "north" / "test" / OUTBOX).kept["kept/releases"].tolist() == [1]


@pytest.mark.slow
def test_what_compression_lost_is_kept_until_it_counts(tmp_path):
    crowd = Crowd(tmp_path, compress="top-k", compress__keep=0.1)
    path = tmp_path / "north" / "test" / OUTBOX
    crowd.ask(0)
    lost = read_outbox(path).kept["kept/residual"]
    assert np.abs(lost).max() > 0
    crowd.meeting.meet([crowd.ask(1)])  # the first organisation's message never arrives
    crowd.ask(0)
    np.testing.assert_array_equal(read_outbox(path).kept["kept/before"], 0 * lost)
    counted = crowd.ask(0, crowd.answer(0))
    lost = read_outbox(path).kept["kept/residual"]
    crowd.meeting.meet([counted, crowd.ask(1)])
    crowd.ask(0)
    np.testing.assert_array_equal(read_outbox(path).kept["kept/before"], lost)


def test_bad_changes_are_left_out_and_named(tmp_path):
    crowd = Crowd(tmp_path, compress="top-k", compress__keep=0.1)
    good, other = crowd.ask(0), crowd.ask(1)
    for name, x, why in (
        ("change/index", good.arrays["change/index"] + 10_000, "change/index has a number outside 0 to"),
        ("change/value", good.arrays["change/value"] * np.nan, "the change of its parameters is not finite"),
        ("change/value", good.arrays["change/value"][:, :2], "change/value has the shape"),
    ):
        before = crowd.meeting.state
        known = dict(crowd.meeting.known)
        held = crowd.meeting.meet([good._replace(arrays=good.arrays | {name: x}), other])
        assert why in held.left_out[0]
        assert held.present.tolist() == [False, True]
        crowd.meeting.state, crowd.meeting.round, crowd.meeting.known = before, 0, known


def test_a_server_cannot_name_a_folder_elsewhere(tmp_path):
    crowd = Crowd(tmp_path)
    with pytest.raises(BadMessage, match="cannot be a folder's"):
        crowd.ask(0, crowd.answer(0)._replace(run="../elsewhere"))


def test_an_organisation_refuses_an_answer_that_does_not_fit(tmp_path):
    crowd = Crowd(tmp_path)
    answer = crowd.answer(0)
    name = next(name for name in answer.arrays if name.startswith("params/"))
    with pytest.raises(BadMessage, match=f"it lacks '{name}'"):
        crowd.ask(0, answer._replace(arrays={k: x for k, x in answer.arrays.items() if k != name}))
    with pytest.raises(BadMessage, match="is not finite"):
        crowd.ask(0, answer._replace(arrays=answer.arrays | {name: answer.arrays[name] * np.nan}))


def test_an_organisation_has_worlds_of_its_own(tmp_path):
    (tmp_path / "world.json").write_text('{"gravity": 12.5}')
    federation = read_federation(SMALL)
    north = read_organisation({"folder": str(tmp_path), "env-params": str(tmp_path / "world.json")})
    assert north.own(federation.config, (1,)).env_params == [{}, {"gravity": 12.5}]
    with pytest.raises(ShoalError, match="unknown setting fodler in --node-config"):
        read_organisation({"fodler": "x"})


@pytest.mark.slow
def test_an_organisation_may_have_an_environment_and_statistics_of_its_own(tmp_path):
    crowd = Crowd(tmp_path, share_statistics=False)
    crowd.organisations[1] = Organisation(tmp_path / "south", env="gym:CartPole-v1")
    for _ in range(2):
        messages = [crowd.ask(0), crowd.ask(1)]
        assert not any(name.startswith("statistics/") for one in messages for name in one.arrays)
        held = crowd.meeting.meet(messages)
        assert not held.left_out
        assert held.present.all()
    assert statistics_of(tmp_path / "south" / "test" / OUTBOX) > 16


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"organisations": "north"}, "two or more different names"),
        ({"wiat": 3}, "unknown setting wiat"),
        ({"shoal.parts": ("actor",)}, "leave parts out"),
        ({"shoal.exchange": "gossip", "shoal.compress.kind": "int8"}, "need a server that all take part in"),
        ({"settings": "num_envs"}, "NAME=VALUE each, not 'num_envs'"),
    ],
)
def test_federations_that_cannot_be_are_refused(settings, why):
    with pytest.raises(ShoalError, match=why):
        read_federation(SMALL | settings)
