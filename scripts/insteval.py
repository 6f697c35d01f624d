# SPDX-License-Identifier: Apache-2.0
"""Fetches the InstEval ratings and writes them as CSV.

InstEval is 73,421 ratings (y, 1 to 5) that 2,972 students (s) gave 1,128 lecturers (d) of ETH
Zurich, with the student's age in semesters (studage), the semesters since the lecture (lectage),
whether it was a service for another department (service) and the department (dept). It is part
of lme4, which Debian packages as r-cran-lme4. lme4 is under the GPL, so the data stays in a cache
on the user's machine and never becomes part of Tandem; the licence text is written next to it.
"""

import argparse
import collections
import csv
import os
import pathlib
import subprocess
import sys
import tempfile

import rdata

PACKAGE = "r-cran-lme4"
DATABASE = "usr/lib/R/site-library/lme4/data/Rdata"
COPYRIGHT = f"usr/share/doc/{PACKAGE}/copyright"
COLUMNS = ("s", "d", "studage", "lectage", "service", "dept", "y")
ROWS, STUDENTS, LECTURERS = 73421, 2972, 1128


class InstEvalError(Exception):
    """The data cannot be downloaded or is not as expected."""


def default_path():
    cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(cache) / "tandem" / "insteval.csv"


def _run(command, cwd):
    try:
        result = subprocess.run(command, cwd=cwd, stdin=subprocess.DEVNULL, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    except FileNotFoundError:
        return f"{command[0]} was not found; it is part of Debian"
    return "" if result.returncode == 0 else result.stdout.strip() or f"{command[0]} failed"


def download(directory):
    """Downloads the package into `directory` and returns its path; installs nothing.

    If the machine's package lists do not contain it (never updated, or too old), fetches separate
    lists into `directory`, which needs no root rights.
    """
    lists = directory / "lists"
    private = ["-o", f"Dir::State::Lists={lists}", "-o", f"Dir::Cache={directory}",
               "-o", "Debug::NoLocking=1"]
    problem = _run(["apt-get", "-qq", "download", PACKAGE], directory)
    if problem:
        (lists / "partial").mkdir(parents=True)
        problem = _run(["apt-get", "-qq", *private, "-o", "APT::Update::Error-Mode=any", "update"],
                       directory)
        if not problem:
            problem = _run(["apt-get", "-qq", *private, "download", PACKAGE], directory)
    packages = sorted(directory.glob(f"{PACKAGE}_*.deb"))
    if problem or not packages:
        raise InstEvalError(
            f"the Debian package {PACKAGE}, which holds the data, could not be downloaded.\n"
            f"apt-get said: {problem or 'nothing'}\n"
            f"Without a network, copy the package here by hand and use --deb FILE.")
    return packages[0]


def unpack(package, directory):
    problem = _run(["dpkg-deb", "-x", str(package), str(directory)], None)
    if problem:
        raise InstEvalError(f"{package} could not be unpacked: {problem}")


def check(columns):
    """Raises InstEvalError unless `columns` are the data set that published results refer to."""
    if sorted(columns) != sorted(COLUMNS):
        raise InstEvalError(f"columns {sorted(columns)} found, {sorted(COLUMNS)} expected")
    found = (len(columns["y"]), len(set(columns["s"])), len(set(columns["d"])))
    if found != (ROWS, STUDENTS, LECTURERS):
        raise InstEvalError(
            f"{found[0]} ratings by {found[1]} students of {found[2]} lecturers found, "
            f"{ROWS} by {STUDENTS} of {LECTURERS} expected")
    ratings = set(map(str, columns["y"]))
    if not ratings <= set("12345"):
        raise InstEvalError(f"ratings {sorted(ratings)} found, 1 to 5 expected")


def write_atomically(path, write):
    """Calls write(file) on a new file, which replaces `path` only when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", newline="", encoding="utf-8") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def write_csv(path, columns):
    def write(file):
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(zip(*(columns[name] for name in COLUMNS)))

    write_atomically(path, write)


def is_complete(path):
    """Returns whether `path` already is the CSV file that this program writes."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            rows = csv.DictReader(file)
            columns = collections.defaultdict(list)
            for row in rows:
                for name, value in row.items():
                    columns[name].append(value)
        check(columns)
    except (OSError, csv.Error, UnicodeDecodeError, InstEvalError, TypeError):
        return False
    return True


def prepare(out, deb=None):
    with tempfile.TemporaryDirectory(prefix="tandem-insteval-") as name:
        directory = pathlib.Path(name)
        # apt downloads as its user _apt instead of root, and warns if _apt cannot write to the
        # directory.
        directory.chmod(0o777)
        package = pathlib.Path(deb) if deb else download(directory)
        unpack(package, directory / "unpacked")
        frame = rdata.read_lazyload(directory / "unpacked" / DATABASE, "InstEval")
        columns = rdata.data_frame_columns(frame)
        check(columns)
        notice = (directory / "unpacked" / COPYRIGHT).read_text(encoding="utf-8")
        write_atomically(out.with_suffix(".LICENSE"), lambda file: file.write(notice))
        write_csv(out, columns)


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="scripts/insteval", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=default_path(),
                        help="the CSV file (default: %(default)s)")
    parser.add_argument("--deb", type=pathlib.Path, metavar="FILE",
                        help=f"take the data from this {PACKAGE} package instead of downloading it")
    parser.add_argument("--quiet", action="store_true", help="print the path only")
    options = parser.parse_args(arguments)
    # Only the path goes to stdout, so that $(scripts/insteval) is the path.
    say = (lambda text: None) if options.quiet else lambda text: print(text, file=sys.stderr)
    try:
        if is_complete(options.out):
            say("InstEval is already in the cache")
        else:
            prepare(options.out, options.deb)
            say(f"InstEval: {ROWS} ratings by {STUDENTS} students of {LECTURERS} lecturers "
                f"(from lme4, GPL; its licence is beside the file)")
    except (InstEvalError, rdata.RDataError, OSError) as error:
        print(f"insteval: error: {error}", file=sys.stderr)
        return 1
    print(options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
