"""Whose group it was: the model of vLLM's groups, the trainer's, and how numbers are matched with them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.diagnose.events import GroupLabel
from lockstep.diagnose.groups import RELEASES, Layout, made_groups
from lockstep.diagnose.groups.match import Seen, readings
from lockstep.diagnose.groups.vllm import find

V0110 = next(release for release in RELEASES if release.name == "0.11.0")
_SIZE = st.sampled_from((1, 2, 3, 4))


def seen(local: int | None, guid: str, *, op: str = "ALLREDUCE", numel: int = 2, members: int = 1) -> Seen:
    label = GroupLabel(local=local, guid=guid, rank=0)
    return Seen(label, ((op, numel, 7),), tuple((rank, rank) for rank in range(members)), world=members)


def test_the_incidents_groups_as_the_real_library_named_them() -> None:
    device = [
        (group.kind, group.guid, group.local) for group in made_groups(V0110, Layout(dp=2)) if group.device
    ]
    assert device == [
        ("default", 0, 0),
        ("world", 1, 1),
        *[("tp", guid, 2) for guid in (3, 5)],
        *[("dcp", guid, 3) for guid in (7, 9)],
        *[("pp", guid, 4) for guid in (11, 13)],
        ("dp", 15, 5),
        ("ep", 17, 6),
    ]


@given(st.sampled_from(RELEASES), _SIZE, _SIZE, _SIZE, st.integers(0, 400))
def test_finding_a_group_agrees_with_listing_all(
    release: object, tp: int, pp: int, dp: int, guid: int
) -> None:
    layout = Layout(tp, pp, dp)
    made = made_groups(release, layout)  # type: ignore[arg-type]
    assert [group.guid for group in made] == list(range(len(made)))
    expected = made[guid] if guid < len(made) else None
    assert find(release, layout, guid) == expected  # type: ignore[arg-type]


@given(_SIZE, _SIZE, _SIZE)
def test_every_rank_is_in_one_group_of_each_kind(tp: int, pp: int, dp: int) -> None:
    layout = Layout(tp, pp, dp)
    for kind in V0110.kinds:
        ranks = [rank for ranks in layout.lists(kind) for rank in ranks]
        assert sorted(ranks) == list(range(layout.world))


def test_pg_5_guid_15_with_two_elements_is_the_dp_group_of_0_11() -> None:
    best = readings(seen(5, "15"))[0]
    assert (best.side, best.group, best.releases, best.layout) == (
        "rollout",
        "rollout.dp",
        ("0.11.0",),
        Layout(dp=2),
    )


def test_another_size_makes_it_less_likely() -> None:
    scores = [max(r.score for r in readings(seen(5, "15", numel=numel))) for numel in (2, 1000)]
    assert scores[0] > scores[1]


@pytest.mark.parametrize(
    ("guid", "op", "name"),
    [("0", "BROADCAST", "trainer.world"), ("1", "_REDUCE_SCATTER_BASE", "trainer.zero")],
)
def test_the_trainers_groups(guid: str, op: str, name: str) -> None:
    best = readings(seen(int(guid), guid, op=op, numel=4096, members=6))[0]
    assert (best.side, best.group, best.ranks) == ("trainer", name, tuple(range(6)))


def test_a_description_names_a_group() -> None:
    label = GroupLabel(local=4, guid="20", desc="mesh_tp", rank=1)
    assert readings(Seen(label, (("BROADCAST", 1, 3),), ((1, 15),), 16))[0].group == "mesh_tp"


@pytest.mark.parametrize(
    "label", [None, GroupLabel(local=9, guid="3", rank=0), GroupLabel(local=1, guid="f00d", rank=0)]
)
def test_numbers_that_nobody_gives_have_no_reading(label: GroupLabel | None) -> None:
    assert readings(Seen(label, (), ((0, 0),), 1)) == ()


def test_a_group_of_one_rank_cannot_wait() -> None:
    assert all(reading.ranks is None or len(reading.ranks) > 1 for reading in readings(seen(2, "3")))


def test_what_the_log_names_decides() -> None:
    ambiguous = seen(6, "17", numel=9999)
    plain = readings(ambiguous)
    named = readings(
        Seen(ambiguous.label, ambiguous.operations, ambiguous.members, 1, vllm="0.11.0", layout=Layout(dp=2))
    )
    assert len(plain) > len(named) or plain[0] != named[0]
    assert (named[0].group, named[0].releases) == ("rollout.ep", ("0.11.0",))
