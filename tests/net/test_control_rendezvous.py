"""The bootstrap's registry, alone and through libp2p."""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from libp2p.discovery.rendezvous.messages import create_discover_message, create_register_message
from libp2p.peer.id import ID
from multiaddr import Multiaddr

from aurora_p2p.crypto.identity import Identity
from aurora_p2p.errors import RefusedError, UnreachableError, WireError
from aurora_p2p.net.host import open_control_host
from aurora_p2p.net.rendezvous import (
    MAX_ADDRESSES,
    MAX_NAMESPACE,
    MAX_TTL_SECONDS,
    SWEEP_SECONDS,
    Registry,
    _reply,
    advertise,
    discover,
    serve_rendezvous,
)
from aurora_p2p.types import PeerId

LOOPBACK = ["/ip4/127.0.0.1/tcp/0"]
LONG = 30.0
ADDRESS = Multiaddr("/ip4/192.0.2.1/tcp/4101")
PEERS = [PeerId(f"peer-{number}") for number in range(6)]
NAMESPACES = ["a", "b", "c"]

register = st.tuples(st.just("register"), st.sampled_from(PEERS), st.sampled_from(NAMESPACES), st.integers(1, 40))
unregister = st.tuples(st.just("unregister"), st.sampled_from(PEERS), st.sampled_from(NAMESPACES), st.just(0))
steps = st.lists(st.tuples(st.one_of(register, unregister), st.integers(0, 15)), max_size=60)


@given(steps)
def test_the_registry_stays_within_its_bounds_and_hands_out_living_registrations_only(script: list[Any]) -> None:
    registry, now, model = Registry(max_registrations=5, max_per_namespace=3, max_per_peer=2), 0.0, {}
    for (action, peer, namespace, ttl), pause in script:
        now += pause
        if action == "unregister":
            registry.unregister(peer, namespace)
            model.pop((namespace, peer), None)
        elif registry.register(peer, namespace, [b"address"], ttl, now=now):
            model[namespace, peer] = now + ttl
        else:
            assert (namespace, peer) not in {key for key, expires in model.items() if expires > now}
        assert len(registry) <= 5
        for name in NAMESPACES:
            found = registry.discover(name, 3, now=now, chance=random.Random(0))
            living = {peer for (space, peer), expires in model.items() if space == name and expires > now}
            assert {peer for peer, _ in found} == living
            assert len(living) <= 3


def test_a_full_registry_makes_room_once_registrations_have_expired() -> None:
    registry = Registry(max_registrations=2)
    assert registry.register(PEERS[0], "a", [b"x"], 10, now=0)
    assert registry.register(PEERS[1], "b", [b"x"], 100, now=0)
    assert not registry.register(PEERS[2], "a", [b"x"], 10, now=5)
    assert registry.register(PEERS[1], "b", [b"y"], 100, now=5), "a renewal takes no room"
    assert not registry.register(PEERS[2], "a", [b"x"], 10, now=11), "it looked a moment ago"
    assert registry.register(PEERS[2], "a", [b"x"], 10, now=5 + SWEEP_SECONDS)
    assert len(registry) == 2


def test_a_discovery_is_a_random_choice_within_the_limit() -> None:
    registry = Registry()
    for peer in PEERS:
        registry.register(peer, "a", [b"x"], 10, now=0)
    seen = [tuple(p for p, _ in registry.discover("a", 2, now=1, chance=random.Random(seed))) for seed in range(40)]
    assert {len(choice) for choice in seen} == {2}
    assert {peer for choice in seen for peer in choice} == set(PEERS)
    assert registry.discover("unknown", 2, now=1, chance=random.Random(0)) == []


def answer(registry: Registry, asker: Identity, message: object) -> Any:
    return _reply(registry, asker.peer, message, 0.0, random.Random(0))


@pytest.mark.parametrize(
    ("namespace", "ttl", "addresses", "status"),
    [
        ("swarm", 600, 1, "OK"),
        ("", 600, 1, "E_INVALID_NAMESPACE"),
        ("x" * (MAX_NAMESPACE + 1), 600, 1, "E_INVALID_NAMESPACE"),
        ("swarm", MAX_TTL_SECONDS + 1, 1, "E_INVALID_TTL"),
        ("swarm", -1, 1, "E_INVALID_TTL"),
        ("swarm", 600, 0, "E_INVALID_PEER_INFO"),
        ("swarm", 600, MAX_ADDRESSES + 1, "E_INVALID_PEER_INFO"),
    ],
)
def test_a_registration_outside_the_limits_is_refused_by_name(
    namespace: str, ttl: int, addresses: int, status: str
) -> None:
    me, registry = Identity.generate(), Registry()
    message = create_register_message(namespace, ID.from_base58(me.peer), [ADDRESS] * addresses, ttl)
    response = answer(registry, me, message).registerResponse
    assert message.ResponseStatus.Name(response.status) == status
    assert len(registry) == (status == "OK")


def test_nobody_registers_for_somebody_else() -> None:
    me, other, registry = Identity.generate(), Identity.generate(), Registry()
    message = create_register_message("swarm", ID.from_base58(other.peer), [ADDRESS], 600)
    response = answer(registry, me, message).registerResponse
    assert message.ResponseStatus.Name(response.status) == "E_NOT_AUTHORIZED"
    assert len(registry) == 0


def test_a_message_of_another_type_is_a_wire_error() -> None:
    message = create_discover_message("swarm", 1)
    message.type = message.REGISTER_RESPONSE
    with pytest.raises(WireError):
        answer(Registry(), Identity.generate(), message)


def test_peers_find_each_other_through_a_bootstrap() -> None:
    registry = Registry(max_per_namespace=1)

    async def main() -> None:
        async with (
            open_control_host(Identity.generate(), LOOPBACK, gossip=False) as bootstrap,
            open_control_host(Identity.generate(), LOOPBACK, gossip=False) as first,
            open_control_host(Identity.generate(), LOOPBACK, gossip=False) as second,
        ):
            with pytest.raises(UnreachableError, match="not connected"):
                await discover(first, bootstrap.peer, "swarm", seconds=LONG)
            serve_rendezvous(bootstrap, registry, clock=lambda: 0.0, chance=random.Random(0))
            for host in (first, second):
                await host.connect(bootstrap.addresses()[0], seconds=LONG)
            assert await advertise(first, bootstrap.peer, "swarm", seconds=LONG) > 0
            assert await discover(second, bootstrap.peer, "swarm", seconds=LONG) == [(first.peer, first.addresses())]
            assert await discover(second, bootstrap.peer, "other", seconds=LONG) == []
            with pytest.raises(RefusedError) as refused:
                await advertise(second, bootstrap.peer, "swarm", seconds=LONG)
            assert refused.value.reason == "unavailable"

    trio.run(main)


def test_hints_that_cannot_be_dialled_are_left_out() -> None:
    liar = Identity.generate()

    async def main() -> None:
        async with (
            open_control_host(Identity.generate(), LOOPBACK, gossip=False) as bootstrap,
            open_control_host(Identity.generate(), LOOPBACK, gossip=False) as asker,
        ):
            registry = Registry()
            registry.register(liar.peer, "swarm", [b"\xff\xff"], 10, now=0)
            registry.register(Identity.generate().peer, "swarm", [Multiaddr("/dns4/a.b/tcp/1").to_bytes()], 10, now=0)
            registry.register(asker.peer, "swarm", [ADDRESS.to_bytes()], 10, now=0)
            serve_rendezvous(bootstrap, registry, clock=lambda: 0.0, chance=random.Random(0))
            await asker.connect(bootstrap.addresses()[0], seconds=LONG)
            found = await discover(asker, bootstrap.peer, "swarm", seconds=LONG)
            assert found == [(asker.peer, (f"{ADDRESS}/p2p/{asker.peer}",))]

    trio.run(main)
