"""`pytest --compile-report 30`: the CPU seconds, compilations and compile seconds of files and of tests."""

import os
from collections import defaultdict

import jax
import pytest

EVENT = "/jax/core/compile/backend_compile_duration"
compilations: list[float] = []


def cpu_seconds():
    """Of this process and of those it started that have ended."""
    return sum(os.times()[:4])


def pytest_addoption(parser):
    parser.addoption("--compile-report", type=int, metavar="N", help="show the N most expensive files, tests")


def pytest_configure(config):
    if config.getoption("compile_report"):
        listen = lambda event, seconds, **_: compilations.append(seconds) if event == EVENT else None
        jax.monitoring.register_event_duration_secs_listener(listen)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    compilations.clear()
    item.cpu_before = cpu_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if call.when == "teardown":
        cost = cpu_seconds() - item.cpu_before, len(compilations), sum(compilations)
        report.user_properties.append(("cost", cost))
    return report


def pytest_terminal_summary(terminalreporter, config):
    number = config.getoption("compile_report")
    if not number:
        return
    files, tests = defaultdict(lambda: [0.0, 0, 0.0]), {}
    for report in terminalreporter.getreports(""):
        cost = dict(report.user_properties).get("cost") if report.when == "teardown" else None
        if cost:
            tests[report.nodeid] = cost
            for total in (files[report.nodeid.split("::")[0]], files["all"]):
                total[:] = (x + y for x, y in zip(total, cost, strict=True))
    for costs in (files, tests):
        terminalreporter.write_line("\n CPU s  programs  compile s")
        for name, cost in sorted(costs.items(), key=lambda item: -item[1][0])[:number]:
            terminalreporter.write_line(f"{cost[0]:6.1f}  {cost[1]:8d}  {cost[2]:9.1f}  {name}")
