# SPDX-License-Identifier: Apache-2.0
"""Checks that deadlines, leases and time-outs use the monotonic clock: the wall clock jumps when NTP or a person sets it.

The boot clock, which counts the time of suspensions, is for promises that run out while the machine is suspended.

absl's timed waits sleep until a moment of the wall clock, even those that take a duration; base/timed_wait.h replaces them."""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODULES = ["base", "rpc", "collectives", "launcher", "ps", "weights", "worker", "cli", "bench", "python"]

WALL_CLOCK = re.compile(
    r"absl::Now\(|GetCurrentTimeNanos\(|system_clock|CLOCK_REALTIME|gettimeofday\(|ToChronoTime\(|std::time\(|"
    r"(?:Await|LockWhen|ReaderLockWhen|WriterLockWhen|Wait|WaitForNotification)With(?:Deadline|Timeout)\(")

# What reads the wall clock, and why it may.
ALLOWED = {
    "base/clock.cc": "gives the monotonic clock's zero a name",
    "base/ticks.h": "the time of day in flight records and traces",
    "cli/commands/cert.cc": "when a certificate expires",
    "cli/commands/grant.cc": "when a grant expires",
    "cli/monitor/snapshot.cc": "the time of day at the top of a screen",
    "cli/profiling/chrome_json.cc": "the time of day in traces",
    "cli/profiling/collect.cc": "a name that no other process has",
    "collectives/group/peer_failure.cc": "the time of an error, which torchrun compares",
    "launcher/host/socket_directory.cc": "the age of a directory, which the file system states in wall clock time",
    "launcher/run_job.cc": "the name of the log directory",
    "rpc/grpc/client/grpc_transport.cc": "when a grant expires",
    "rpc/security/audit_log.cc": "the time of a line",
    "rpc/security/certificate_files.cc": "when a certificate expires",
    "rpc/security/grant.cc": "when a grant expires",
    "rpc/security/grant_checker.cc": "when a grant expires",
    "ps/server/table/server_table.cc": "a generation that grows from one process to the next",
    "weights/store/model_store.cc": "an epoch that grows from one process to the next",
    "worker/trainer/model_checkpoint.cc": "when a checkpoint was written, for people",
}

BOOT_CLOCK = re.compile(r"BootTimeNow\b|CLOCK_BOOTTIME")

# What uses the boot clock, and why.
ALLOWED_BOOT_CLOCK = {
    "base/clock.cc": "reads it",
    "base/clock.h": "declares it",
    "ps/failover/receiver.h": "the lag of a follower that answers reads",
    "ps/failover/shipped_log.h": "whether a primary may say that it leads",
    "ps/server/parameter_server.h": "the clock of both, and of a primary's lease",
}


def without_comments(text):
    """Returns C++ text with its comments blanked out; the lines stay."""
    pattern = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
    return pattern.sub(lambda m: m[0] if m[0].startswith('"') else re.sub(r"[^\n]", " ", m[0]), text)


def uses_of(clock):
    """Returns {path: ["path:line: text", ...]}."""
    uses = {}
    for module in MODULES:
        for path in sorted((ROOT / module).rglob("*")):
            if path.suffix not in (".h", ".cc"):
                continue
            name = path.relative_to(ROOT).as_posix()
            for number, line in enumerate(without_comments(path.read_text(encoding="utf-8")).splitlines(), 1):
                if clock.search(line):
                    uses.setdefault(name, []).append(f"{name}:{number}: {line.strip()}")
    return uses


class WallClockTest(unittest.TestCase):
    def test_no_deadline_uses_the_wall_clock(self):
        wrong = [line for name, lines in uses_of(WALL_CLOCK).items() if name not in ALLOWED for line in lines]
        self.assertEqual(wrong, [], "use MonotonicNow() (base/clock.h) and the waits of base/timed_wait.h; what people "
                         "read may use the wall clock and is listed here")

    def test_the_list_names_only_files_that_use_it(self):
        self.assertEqual(sorted(set(ALLOWED) - set(uses_of(WALL_CLOCK))), [])

    def test_the_boot_clock_is_used_by_the_files_that_are_listed(self):
        self.assertEqual(sorted(uses_of(BOOT_CLOCK)), sorted(ALLOWED_BOOT_CLOCK))

    def test_the_pattern_finds_what_it_should(self):
        for text in ["absl::Now()", "mutex_.AwaitWithTimeout(c, d)", "cv.WaitWithDeadline(&m, t)",
                     "std::chrono::system_clock::now()", "n.WaitForNotificationWithTimeout(t)"]:
            self.assertRegex(text, WALL_CLOCK)
        self.assertNotRegex(without_comments("x; // absl::Now()\n/* system_clock */"), WALL_CLOCK)


if __name__ == "__main__":
    unittest.main()
