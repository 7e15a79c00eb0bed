"""Measure relays side by side in one run: a reference, this relay, and nothing at all. Run: ./dev bench [OPTIONS]

Prints a table and bars, and draws them into a PNG. Each step is done by one relay after the other, each started afresh,
so that what else the machine does in the meantime is the same for all. docs/performance.md explains the figures.
"""

import argparse
import datetime
import json
import os
import platform
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench import report
from bench.load import Cannot
from bench.servers import NOTHING, VARIANTS, Variant
from bench.steps import FULL, QUICK, Step, steps

Values = dict[str, dict[str, list[float | None]]]  # figure → relay → a value each round


def main() -> None:
    options = parse(sys.argv[1:])
    if not Path("/proc/self/stat").exists():
        raise SystemExit("memory and CPU are read from /proc: this needs Linux")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that relays are stopped and folders removed
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    todo, relays = chosen(steps(QUICK if options.quick else FULL), [*VARIANTS, NOTHING], options.only)
    options.folder.mkdir(parents=True, exist_ok=True)
    values: Values = {}
    notes: list[str] = []
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=options.folder) as name:
        machine = describe(Path(name))
        progress(machine)
        for turn in range(options.rounds):
            for step in todo:
                disk = {}
                for relay in relays:
                    if relay is not NOTHING or step.ceiling:
                        disk[relay.name] = fsyncs(Path(name))
                        at = f"round {turn + 1} of {options.rounds}, " if options.rounds > 1 else ""
                        progress(f"{at}{step.name}: {relay.name} … (disk: {disk[relay.name]:,.0f} fsyncs/s)")
                        measure(step, relay, Path(name), values, notes)
                disk.pop(NOTHING.name, None)
                notes += uneven(step, disk) if len(disk) > 1 else []
        # told before the folders are removed, which takes minutes
        rows: list[report.Row] = [(figure, medians(each)) for figure, each in values.items()]
        columns = [relay.name for relay in relays]
        shown = [column for column in columns if column != NOTHING.name] or columns
        when = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC, {machine}"
        print(f"{when}\n\n{report.table(rows, columns)}")
        print("".join(f"{note}\n" for note in notes))
        print(report.chart(rows, shown))
        if options.json:
            told = {"when": when, "figures": dict(rows), "notes": notes}
            options.json.write_text(json.dumps(told, indent=2, ensure_ascii=False) + "\n")
        try:
            report.picture(rows, shown, options.png, when)
            print(f"The chart: {options.png}", flush=True)
        except ImportError:
            print("No PNG, since matplotlib is missing: ./dev bench installs it.", flush=True)
        progress("deleting what was written …")


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev bench", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small counts, under a minute: to see that it works")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="only this step or this relay; may be repeated"
    )
    parser.add_argument("--rounds", type=int, default=1, help="measure all so many times, and show medians")
    parser.add_argument(
        "--folder", type=Path, default=Path(), help="where spools are made, on the disk to be measured; default: here"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    parser.add_argument("--png", type=Path, metavar="FILE", default=Path("bench.png"), help="default: bench.png")
    return parser.parse_args(arguments)


def chosen(todo: list[Step], relays: list[Variant], only: list[str]) -> tuple[list[Step], list[Variant]]:
    """Those that are named; where none is, all."""
    names = [one.name for one in (*todo, *relays)]
    for name in only:
        if name not in names:
            raise SystemExit(f"there is no {name}: --only takes {', '.join(names)}")
    return (
        [step for step in todo if step.name in only] or todo,
        [relay for relay in relays if relay.name in only] or relays,
    )


def measure(step: Step, relay: Variant, folder: Path, values: Values, notes: list[str]) -> None:
    """Do the step and add what came out."""
    own = Path(tempfile.mkdtemp(prefix=f"{relay.name}-", dir=folder))  # to the end: ext4 is slow where it just deleted
    result: list[float | None]
    try:
        result, told = step.measure(relay, own)
    except Cannot as error:
        result, told = [], [f"- : {error}"]
    for place, figure in enumerate(step.figures):
        value = result[place] if place < len(result) else None
        values.setdefault(figure, {}).setdefault(relay.name, []).append(value)
    for line in told:
        note = f"{step.name}, {relay.name}: {line}"
        progress(f"  {note}")
        if note not in notes:
            notes.append(note)


def medians(each: dict[str, list[float | None]]) -> dict[str, float | None]:
    """Over the rounds; a relay that could not once can't."""
    return {
        relay: None if None in values else statistics.median(value for value in values if value is not None)
        for relay, values in each.items()
    }


def fsyncs(folder: Path) -> float:
    """How many appends a second the disk takes durably just now."""
    os.sync()  # what the last relay wrote, and what was removed, is done with
    began, count = time.perf_counter(), 0
    with (folder / "fsync").open("wb") as file:
        while (passed := time.perf_counter() - began) < 0.3:
            file.write(b"x" * 200)
            file.flush()
            os.fsync(file.fileno())
            count += 1
    return count / passed


def uneven(step: Step, disk: dict[str, float]) -> list[str]:
    """A note when the disk was not the same for all."""
    if max(disk.values()) < 2 * min(disk.values()):
        return []
    told = ", ".join(f"{rate:,.0f} before {relay}" for relay, rate in disk.items())
    return [f"{step.name}: do not compare, the disk changed: {told} (fsyncs/s)"]


def describe(folder: Path) -> str:
    """The machine in one line."""
    told = subprocess.run(["df", "--output=fstype", folder], capture_output=True, text=True).stdout.split()
    return (
        f"{os.cpu_count()} cores, {platform.system()} {platform.release()}, Python {platform.python_version()}, "
        f"{told[-1] if told else 'disk'} with {fsyncs(folder):,.0f} fsyncs/s, load {os.getloadavg()[0]:.1f} before"
    )


def progress(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
