from isoscale.kinds import DeviceSet
from isoscale.runtime.coordinator.journal import RunResult
from isoscale.runtime.coordinator.status import status_of
from tests.unit.rescale_model import World
from tests.unit.test_rescale import bury, quiet


def state(world: World) -> str:
    return status_of(world.membership, RunResult(), term=1, silences={}, checkpoint=None, messages=[])["state"]


def test_a_job_starts_until_its_first_step_is_sealed_and_recovers_after_a_loss() -> None:
    world = World(DeviceSet.parse("cpu*2"))
    world.begin()
    assert (world.membership.phase, state(world)) == ("gathering", "starting")
    quiet(world)
    assert (world.membership.phase, state(world)) == ("training", "starting")
    world.seal(1)
    quiet(world)
    assert state(world) == "training"
    bury(world, 1)
    quiet(world)
    assert state(world) == "recovering"
