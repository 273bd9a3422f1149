"""The verdicts of the reported faults as a table, and their ids as words for `-k`."""
import pytest

from conftest import Server, gone, wait_until

from .registry import CASES

VERDICTS = ("FAIL", "not yet", "not applicable", "pass")  # of several tests of one fault the first counts
RESULTS = pytest.StashKey()


def pytest_configure(config):
    for marker in ("case(id): checks this reported fault", "slow: takes more than about 1.5 s",
                   "not_applicable(reason): checks that what tandem lacks is refused clearly"):
        config.addinivalue_line("markers", marker)
    config.stash[RESULTS] = {}


def pytest_collection_modifyitems(items):
    for item in items:
        for marker in item.iter_markers("case"):
            item.extra_keyword_matches.add(marker.args[0])


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    marker = item.get_closest_marker("case")
    if marker is None:
        return
    lacking = item.get_closest_marker("not_applicable")
    if hasattr(report, "wasxfail") and report.skipped:
        verdict, why = "not yet", report.wasxfail
    elif report.skipped:
        verdict, why = "not applicable", str(report.longrepr[2]).removeprefix("Skipped: ")
    elif report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        verdict, why = "FAIL", (crash.message if crash else str(report.longrepr)).splitlines()[0]
    elif report.when != "call":
        return
    else:
        verdict, why = ("not applicable", lacking.args[0]) if lacking else ("pass", "")
    item.config.stash[RESULTS].setdefault(marker.args[0], []).append((VERDICTS.index(verdict), report.duration, why))


def pytest_terminal_summary(terminalreporter, config):
    results = config.stash[RESULTS]
    if not results:
        return
    counts = dict.fromkeys(VERDICTS, 0)
    terminalreporter.section("reported faults (tests/data/cases/reported-faults.jsonl)")
    for fault, record in CASES.items():
        if fault not in results:
            continue
        verdict, _, why = min(results[fault])
        counts[VERDICTS[verdict]] += 1
        seconds = sum(seconds for _, seconds, _ in results[fault])
        terminalreporter.line(f"{fault}  {record['kind']:21} {VERDICTS[verdict]:15}{seconds:6.2f} s  {why[:150]}".rstrip())
    left_out = len(CASES) - len(results)
    counted = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    terminalreporter.line(f"{len(results)} of {len(CASES)}: {counted}; {left_out} not run")


@pytest.fixture(scope="session")
def server():
    """The default model with default flags, one for all cases that do no harm to it."""
    with Server(grpc=True) as running:
        yield running
        assert running.stop() == 0, "a drained server exits with 0"


@pytest.fixture(scope="module")
def servers():
    """Starts servers that live as long as the module's tests: `servers(model, flag...)`, one for each set of arguments."""
    running = {}

    def start(*flags, **options):
        key = (flags, tuple(sorted(options.items())))
        if key not in running:
            running[key] = Server(*flags, **options)
        return running[key]

    yield start
    try:
        for each in running.values():
            assert each.process.poll() is None, f"a server ended by itself: {each.read(each.log)}"
            pids = each.pids()
            assert each.stop() == 0, each.read(each.log)
            wait_until(lambda: all(map(gone, pids)), what="the end of every process")
    finally:
        for each in running.values():
            if each.process.poll() is None:
                each.kill()
