"""What must hold on 1, 2 and 4 devices alike; run by test_routing.py in a process that has four.

python tests/exchanges/on_four_devices.py
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from shoal.distributed.mesh import BY_LEARNER, REPLICATED
from shoal.envs.registry import make
from shoal.exchanges.config import ExchangeConfig, ExchangeContext
from shoal.exchanges.exploration import read_priors
from shoal.exchanges.registry import make_exchange
from shoal.exchanges.routing import Transport, make_take, take_dynamic
from shoal.learners.context import LearnerContext
from shoal.learners.ppo import PPOConfig, ppo
from shoal.ops import trees
from shoal.settings import with_settings
from shoal.types import ExchangeState, LearnerState, Scores

NUM = 8
CONFIG = PPOConfig(hidden=(7, 5), num_envs=2, norm_obs=True)
SPEC = make("jax:CartPole-v1").spec
LEARNER = ppo(CONFIG, SPEC, LearnerContext(10))
SELECTING = {"local_updates": 1, "min_episodes": 1}
RING = (ExchangeConfig("gossip", 1),)
GOSSIP = (
    ExchangeConfig("gossip", 1),
    ExchangeConfig("gossip", 1, topology="torus", participation=0.7, share_moments=True),
    ExchangeConfig("gossip", 1, topology="pairs"),
)
NEIGHBOURS = (ExchangeConfig("neighbours", 1, topology="star"),)
SELECTIONS = (
    with_settings(ExchangeConfig("tournament"), **SELECTING),
    with_settings(ExchangeConfig("truncation"), fraction=0.3, **SELECTING),
    with_settings(ExchangeConfig("winner", participation=0.5), **SELECTING),
)


def mesh_of(num_devices):
    return Mesh(np.array(jax.devices()[:num_devices]).reshape(-1, 1), ("learners", "data"))


def bits(tree):
    return [(x.shape, str(x.dtype), np.asarray(x).tobytes()) for x in jax.tree.leaves(tree)]


def odd_rows(random, num):
    """Every kind of bits: -0, NaN of all sorts, counters, flags, halves."""
    floats = random.integers(0, 2**32, (num, 5), dtype=np.uint32).view(np.float32)
    floats[:, 0] = -0.0
    return {
        "floats": floats,
        "halves": random.integers(0, 2**16, (num, 2, 3), dtype=np.uint16).view(jnp.bfloat16),
        "counters": random.integers(-9, 9, num).astype(np.int32),
        "flags": random.integers(0, 2, num) > 0,
    }


def check_rows(num_devices: int):
    """Plans and draws are plain indexing, to the bit."""
    random, mesh = np.random.default_rng(num_devices), mesh_of(num_devices)
    rows, transport = odd_rows(random, NUM), Transport(mesh)
    there = jax.device_put(rows, NamedSharding(mesh, BY_LEARNER))
    for wanted in (4, 16):
        sources = random.integers(0, NUM, wanted)
        found = jax.jit(make_take(sources, NUM, transport))(there)
        assert bits(found) == bits(trees.take(rows, sources)), (num_devices, sources)
    few = np.array([0, 1, 2, 0, 4, 5, 5, 7])
    for parent, most in ((few, 2), (few, 3), (np.full(NUM, 3), 1), (random.integers(0, NUM, NUM), NUM)):
        found = jax.jit(lambda rows, p, most=most: take_dynamic(rows, p, most, transport))(there, parent)
        assert bits(found) == bits(trees.take(rows, parent)), (num_devices, parent)


def cohort():
    fresh = jax.jit(jax.vmap(LEARNER.init))(jax.random.split(jax.random.key(1), NUM))._replace(private=())
    random = np.random.default_rng(0)
    real = lambda x: jnp.issubdtype(x.dtype, jnp.floating)
    drawn = lambda x: np.asarray(random.uniform(0.5, 2, x.shape), x.dtype) if real(x) else np.asarray(x)
    return jax.tree.map(drawn, fresh)


def scores():
    random = np.random.default_rng(5)
    returns, here = np.float32(random.normal(size=NUM)), np.ones(NUM, bool)
    return Scores(np.ones(NUM, np.float32), returns, np.arange(NUM, dtype=np.int32) + 5, here)


class Federation:
    """An exchange on so many devices."""

    def __init__(self, configs: tuple[ExchangeConfig, ...], num_devices: int):
        mesh = mesh_of(num_devices)
        priors = read_priors(CONFIG.evolved)
        exchange = make_exchange(configs, ExchangeContext(NUM, LEARNER, SPEC, mesh=mesh, priors=priors))
        self.divided, whole = NamedSharding(mesh, BY_LEARNER), NamedSharding(mesh, REPLICATED)
        self.placed = ExchangeState(self.divided, whole)
        self.init = jax.jit(exchange.init, out_shardings=(self.placed, self.divided))
        self.apply = jax.jit(exchange.apply, out_shardings=(self.placed, self.divided, self.divided))

    def met(self, state, cohort: LearnerState, times: int):
        state, cohort = jax.device_put((state, cohort), (self.placed, self.divided))
        metrics = {}
        for meeting in range(times):
            now = jax.device_put(scores(), self.divided)
            state, cohort, metrics = self.apply(jax.random.key(meeting), state, cohort, now)
        return jax.device_get((state, cohort, metrics))


def check_exchange(configs: tuple[ExchangeConfig, ...]):
    """Two meetings end in the same bits on 1, 2 and 4 devices, and state moves from one to the other."""
    learners, packed = cohort(), []
    federations = {n: Federation(configs, n) for n in (1, 2, 4)}
    for federation in federations.values():
        state, begun = federation.init(jax.device_put(learners, federation.divided))
        state, after, metrics = federation.met(jax.device_get(state), jax.device_get(begun), 2)
        packed.append((trees.pack(state), after, metrics))
    assert bits(packed[0]) == bits(packed[1]) == bits(packed[2]), configs
    if configs == NEIGHBOURS:
        check_state(federations, packed[0][0], learners)


def check_state(federations: dict[int, Federation], packed, learners):
    """What was packed is laid out anew on any number of devices, and goes on as if it had been there."""
    found = []
    for federation in federations.values():
        like, _ = federation.init(jax.device_put(learners, federation.divided))
        laid_out = trees.unpack(packed, jax.device_get(like))
        assert jax.tree.structure(laid_out) == jax.tree.structure(like)
        assert bits(trees.pack(laid_out)) == bits(packed)
        found.append(bits(trees.pack(federation.met(laid_out, learners, 1))))
    assert found[0] == found[1] == found[2]


def check_ring():
    """Eight in a ring on four devices: parameters move by permutation, and nothing gathers a row of them."""
    federation = Federation(RING, 4)
    state, begun = federation.init(jax.device_put(cohort(), federation.divided))
    now = jax.device_put(scores(), federation.divided)
    text = federation.apply.lower(jax.random.key(0), state, begun, now).compile().as_text()
    row = sum(x.size for x in jax.tree.leaves(begun.params)) // NUM + 1  # and whether the sender is there
    sent = [line for line in text.splitlines() if " collective-permute(" in line]
    assert len(sent) == 2, sent
    assert all(f"u32[1,{row}]" in line for line in sent), sent
    gathered = [line for line in text.splitlines() if " all-gather(" in line or " all-reduce(" in line]
    assert not any(str(size) in line for line in gathered for size in (row, row - 1)), gathered


if __name__ == "__main__":
    for devices in (1, 2, 4):
        check_rows(devices)
    check_ring()
    for exchanges in (GOSSIP, NEIGHBOURS, SELECTIONS):
        check_exchange(exchanges)
