"""Fixtures for every test."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from isoscale import env

if TYPE_CHECKING:
    from isoscale.testing import Nursery
    from isoscale.testing.chaos import Result
    from tests.elastic.machines import Machines

# As scripts/test has it, also for who calls pytest: beside other processes, threads of torch wait by computing.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell that starts tests in the background has them ignore Ctrl-C, nohup has them ignore the end of a terminal, and
# so would every process that they start.
for number, usual in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGQUIT, signal.SIG_DFL),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)


@pytest.fixture(autouse=True)
def no_isoscale_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The developer's own ISOSCALE_ variables must not change what a test does."""
    for name in list(os.environ):
        if name.startswith("ISOSCALE_") and name != env.WARM_DIRECTORY:
            monkeypatch.delenv(name)


#: in a process of its own: begins a warm parent when the first run asks for one; ends with whoever started it
KEEPER = """
import os, sys, pathlib
from isoscale.backends.warm import WarmParents
from isoscale.backends.warm_sharing import Keeper
from isoscale.runtime.coordinator.run import WARM_UP

keeper = Keeper(pathlib.Path(sys.argv[1]), WarmParents(WARM_UP, pathlib.Path("/dev/null"), most=10))
keeper.serve(1.0, lambda: float(os.getppid() != int(sys.argv[2])))
keeper.close()
"""


def pytest_collection_finish() -> None:
    """What was imported stays: to look for garbage among it again and again would cost more than many a test."""
    gc.freeze()
    gc.enable()


def pytest_configure(config: pytest.Config) -> None:
    """Processes of jobs are forked from warm parents that all tests share, but for tests that say otherwise."""
    gc.disable()  # until everything is imported
    if hasattr(config, "workerinput") or config.option.collectonly:
        return
    directory = Path(tempfile.mkdtemp(prefix="isoscale-tests-"))
    keeper = subprocess.Popen(
        [sys.executable, "-c", KEEPER, str(directory), str(os.getpid())], stdin=subprocess.DEVNULL
    )
    os.environ[env.WARM_DIRECTORY] = str(directory)

    def end() -> None:
        keeper.kill()
        keeper.wait()
        shutil.rmtree(directory, ignore_errors=True)

    config.add_cleanup(end)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    """Machines that share no disk; all that they run ends with the test."""
    from tests.elastic.machines import Machines, kill_executors, why_no_machines

    if reason := why_no_machines():
        pytest.skip(reason)
    made = Machines(tmp_path)
    yield made
    made.kill(*made.processes)
    for known in tmp_path.glob("*/control/executors.json"):
        kill_executors(known.parents[1])


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Of every file whose jobs shall start warm."""
    from isoscale.testing import Nursery

    with Nursery() as one:
        yield one


@pytest.fixture(scope="session")
def expected(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """What the short job gives that nobody disturbs."""
    from isoscale.testing.chaos import undisturbed

    run = tmp_path_factory.mktemp("undisturbed") / "run"
    found = undisturbed(run, nursery)
    assert not (run / "logs" / "warm.log").exists(), "it has imported torch anew instead of forking from the nursery"
    return found


#: take minutes together and vary what others show; run with `pytest --long`
LONG = (
    "tests/benchmarks/test_smoke.py::test_it_runs[cluster.load",
    "tests/benchmarks/test_smoke.py::test_it_runs[cluster.moves",
    "tests/benchmarks/test_smoke.py::test_it_runs[cluster.reclaims",
    "tests/benchmarks/test_smoke.py::test_it_runs[cluster.serving",
    "tests/benchmarks/test_smoke.py::test_it_runs[cluster.simulated_against_real",
    "tests/benchmarks/test_smoke.py::test_it_runs[elastic.gaps",
    "tests/benchmarks/test_smoke.py::test_it_runs[elastic.steady",
    "tests/benchmarks/test_smoke.py::test_it_runs[elastic.unequal",
    "tests/benchmarks/test_smoke.py::test_it_runs[heterogeneous.mixed",
    "tests/benchmarks/test_smoke.py::test_it_runs[overhead.memory",
    "tests/benchmarks/test_smoke.py::test_it_runs[recipes.proof",
    "tests/benchmarks/test_smoke.py::test_it_runs[ray.",
    "tests/elastic/test_storage.py::test_a_coordinator_that_was_only_slow_is_replaced",
    "tests/ray/test_on_ray.py::test_ray[exit_codes",
    "tests/ray/test_head.py::test_the_head_is_lost_and_another_cluster_takes_its_place",
    "tests/ray/test_head.py::test_a_head_that_remembers_comes_back",
    "tests/ray/test_autoscaler.py",
    "tests/ray/test_apart.py::test_jobs_of_a_service",
    "tests/ray/test_on_ray.py::test_ray[output",
    "tests/ray/test_on_ray.py::test_stock_ddp_has_the_bits",
    "tests/ray/test_on_ray.py::test_ray[fresh_streams",
    "tests/ray/test_on_ray.py::test_ray[other_fingerprints",
    "tests/cluster/test_rough_days.py::test_a_stopped_service_a_flood",
    "tests/cluster/test_retries.py::test_errors_on_trial",
    "tests/cluster/test_batches.py::test_a_batch_size_that_the_service_chooses[pollux",
    "tests/cluster/test_it_survives.py::test_a_reclaim_that_is_interrupted_is_carried_out[reclaim-free",
    "tests/cluster/test_it_survives.py::test_a_pause_that_is_interrupted_is_carried_out[pause-done",
    "tests/cluster/test_it_survives.py::test_death_of_a_service_that_has_just_taken_jobs_over",
    "tests/cluster/test_it_survives.py::test_death_at_a_transition[submit-directory",
    "tests/cluster/test_it_survives.py::test_death_at_a_transition[start-intended",
    "tests/cluster/test_it_survives.py::test_death_at_a_transition[start-recorded",
    "tests/cluster/test_it_survives.py::test_death_at_a_transition[start-released",
    "tests/cluster/test_it_survives.py::test_death_at_a_transition[grant-written",
    "tests/cluster/test_it_survives.py::test_death_at_a_transition[ended-recorded",
    "tests/cluster/test_trainer.py",
    "tests/integrations/test_transformers.py::test_more_workers_and_more_trainings",
    "tests/integrations/test_transformers.py::test_executors_come_and_go_in_other_trainings",
    "tests/integrations/test_transformers.py::test_four_logical_workers_on_executors_that_come_and_die",
    "tests/integrations/test_live_trainer.py::test_other_ways_to_read",
    "tests/integrations/test_live_trainer.py::test_declared_and_never_changed_is_as_undeclared",
    "tests/integrations/test_live_trainer.py::test_a_size_that_is_asked_for_while_it_trains",
    "tests/integrations/test_transformers.py::test_resumed_as_the_stock_class_resumes[causal",
    "tests/integrations/test_transformers.py::test_resumed_as_the_stock_class_resumes[masked",
    "tests/elastic/test_stories.py::test_death_in_a_step",
    "tests/elastic/test_stories.py::test_death_between_steps",
    "tests/elastic/test_stories.py::test_death_of_a_newcomer",
    "tests/elastic/test_stories.py::test_death_of_one_who_gives_the_state_to_a_newcomer",
    "tests/elastic/test_stories.py::test_death_while_others_recover_from_a_death",
    "tests/elastic/test_stories.py::test_all_die_and_their_successors_begin_at_the_checkpoint",
    "tests/elastic/test_whole_fleet.py::test_the_one_who_hands_over_dies[f",
    "tests/elastic/test_whole_fleet.py::test_the_one_who_hands_over_dies[switch",
    "tests/elastic/test_whole_fleet.py::test_the_one_who_hands_over_dies[handover",
    "tests/elastic/test_whole_fleet.py::test_another_one_who_leaves_dies",
    "tests/elastic/test_whole_fleet.py::test_a_newcomer_dies_when_it_has_the_state",
    "tests/elastic/test_whole_fleet.py::test_the_coordinator_dies_in_the_midst_of_it[leaving",
    "tests/elastic/test_whole_fleet.py::test_something_else_is_wanted_in_the_midst_of_it",
    "tests/elastic/test_stopping.py::test_the_first_executor_dies_at_the_last_checkpoint[checkpointed",
    "tests/elastic/test_stopping.py::test_a_stop_while_executors_come_and_go",
    "tests/elastic/test_stopping.py::test_the_coordinator_dies_when_it_has_accepted_a_stop",
    "tests/elastic/test_stopping.py::test_those_who_wait_are_told_when_the_target_is_given_up",
    "tests/elastic/test_stopping.py::test_a_term_signal_does_not_wait_longer_than_a_notice_lasts",
    "tests/elastic/test_stories.py::test_an_executor_joins_from_another_directory",
    "tests/elastic/test_stories.py::test_the_job_ends_before_another_coordinator_comes",
    "tests/elastic/test_stories.py::test_chance_and_other_ways_to_read",
    "tests/elastic/test_warm_start.py::test_the_warm_parent_fails_while_the_job_trains[19",
    "tests/elastic/test_trust.py::test_a_new_coordinator_that_is_stopped_while_it_takes_over",
    "tests/elastic/test_trust.py::test_newcomers_that_die_again_and_again_are_given_up_with_a_way_to_go_on",
    "tests/elastic/test_trust.py::test_a_turn_that_ends_whoever_runs_it_ends_the_job",
    "tests/elastic/test_frozen_code.py::test_loader_processes_that_are_spawned_run_frozen_code",
    "tests/elastic/test_frozen_code.py::test_import_path_entries_are_frozen",
    "tests/cli/test_stream.py::test_loader_processes",
    "tests/cli/test_stream.py::test_kill_9_anywhere",
    "tests/cli/test_stream.py::test_other_tails_have_exact_counts",
    "tests/cli/test_verify.py::test_explain_finds_a_difference_after_a_rescale",
    "tests/cli/test_verify.py::test_what_a_plan_did_not_come_to_is_said",
    "tests/backends/test_conformance.py::test_local[fingerprints-Warm",
    "tests/backends/test_conformance.py::test_local[fingerprints-Cold",
    "tests/backends/test_conformance.py::test_local[other_fingerprints",
    "tests/backends/test_conformance.py::test_local[fresh_streams-Warm",
    "tests/cli/test_replay.py::test_a_run_that_rescaled_and_was_resumed_replays_from_its_checkpoints[4-",
    "tests/cli/test_replay.py::test_a_run_that_rescaled_and_was_resumed_replays_from_its_checkpoints[8-",
    "tests/cli/test_stream.py::test_everyone_is_killed_and_the_job_resumed",
    "tests/cli/test_mcmisp.py",
    "tests/cli/test_plan_under_fire.py",
    "tests/cli/test_porting.py::test_gpt",
    "tests/cli/test_porting.py::test_fine_tuning",
    "tests/cli/test_demo.py",
    "tests/cli/test_profile.py",
    "tests/cli/test_recipes_live.py",
    "tests/cli/test_balanced.py",
    "tests/security/test_full_disk.py",
    "tests/unit/recipes/test_benchmarks.py::test_every_recipe_can_be_measured",
    "tests/backends/test_conformance.py::test_local[fresh_streams-Cold",
    "tests/cli/test_recipes_proof.py",
    "tests/elastic/test_ported_scripts.py::test_meters_and_a_warm_start_from_a_checkpoint_of_its_own",
    "tests/elastic/test_ported_scripts.py::test_a_trainer_with_snapshots",
    "tests/elastic/test_ported_scripts.py::test_verify_finds_it_equal_to_stock_ddp[iterations",
    "tests/elastic/test_ported_scripts.py::test_verify_finds_it_equal_to_stock_ddp[glue",
    "tests/cli/test_verify.py::test_explain_names_the_first_difference[closure",
    "tests/cli/test_verify.py::test_a_failing_script_is_shown_once_with_its_side[raise-in-reference",
    "tests/cli/test_verify.py::test_ctrl_c_exits_130_and_leaves_no_process[elastic",
    "tests/cli/test_replay.py::test_a_run_that_rescaled_and_was_resumed_replays_from_its_checkpoints[2-",
    "tests/cli/test_replay.py::test_a_run_that_was_killed_replays_without_a_summary",
    "tests/cli/test_live_batches.py::test_a_plan_gives_the_bits_of_stock_ddp[drop",
    "tests/integrations/test_transformers.py::test_steps_that_are_done_again",
    "tests/elastic/test_frozen_code.py::test_verify_compares_the_same_code_on_both_sides",
    "tests/elastic/test_frozen_code.py::test_a_job_that_is_run_again_with_resume_keeps_its_code_too",
    "tests/elastic/test_stopping.py::test_at_once_says_what_is_lost",
    "tests/elastic/test_live_batches.py::test_the_second_of_two_requests_counts_and_mistakes_are_refused",
    "tests/elastic/test_live_batches.py::test_the_coordinator_dies_with_an_open_request",
    "tests/unit/test_scale_commands.py::test_a_short_run_writes_what_the_long_one_would",
    "tests/unit/test_fingerprint.py::test_kinds_compute_different_bits",
    "tests/security/test_two_coordinators.py",
    "tests/elastic/test_stories.py::test_chance[12",
    "tests/elastic/test_stopping.py::test_a_signal_of_the_coordinator_stops_after_a_checkpoint[15",
    "tests/elastic/test_whole_fleet.py::test_all_are_replaced_by_more",
    "tests/elastic/test_whole_fleet.py::test_the_coordinator_dies_in_the_midst_of_it",
    "tests/elastic/test_warm_start.py::test_coordinator_and_warm_parent_die_together",
    "tests/elastic/test_live_batches.py::test_sizes_that_are_asked_for_during_a_rescale",
    "tests/ray/test_on_ray.py::test_ray[fingerprints",
    "tests/cli/test_live_batches.py::test_a_plan_gives_the_bits_of_stock_ddp[map",
    "tests/unit/test_fingerprint.py::test_kinds_agree_at_their_common_profile",
    "tests/elastic/test_kept_turns.py::test_a_turn_that_was_over_is_not_run_again[ddp-words2",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="also what takes minutes: more stories, the demo, full disks")


#: what takes longest comes first, so that at the end nobody waits for one long file
SLOW = (
    "tests/benchmarks/test_smoke.py",
    "tests/docs/test_commands.py",
    "tests/ray",
    "tests/integrations",
    "tests/cluster",
    "tests/browser",
    "tests/elastic",
    "tests/ddp",
    "tests/cli",
    "tests/security",
    "tests/backends",
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: next((i for i, one in enumerate(SLOW) if item.nodeid.startswith(one)), len(SLOW)))
    if config.getoption("--long") or any("::" in str(argument) for argument in config.args):
        return
    left_out = [item for item in items if item.nodeid.startswith(LONG)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.nodeid.startswith(LONG)]
