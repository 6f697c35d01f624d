# SPDX-License-Identifier: Apache-2.0
"""Packs files that CMake installed into a wheel, with the metadata of pyproject.toml (in the current folder).

    wheel.py FILES OUT      prints the path of the wheel

scikit-build-core makes the metadata, as it does for pip; unlike pip it would compile everything a second time.
"""

import base64
import hashlib
import pathlib
import shutil
import sys
import zipfile

import scikit_build_core.build


def tag_of(dist_info: pathlib.Path) -> str:
    tags = [line.split(": ")[1] for line in (dist_info / "WHEEL").read_text().splitlines() if line.startswith("Tag: ")]
    assert len(tags) == 1, tags
    return tags[0]


def pack(files: pathlib.Path, dist_info: pathlib.Path, wheel: pathlib.Path) -> None:
    """Writes a zip file of `files` and a record of their hashes. The same files give the same bytes."""
    records = []
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:

        def add(name: str, content: bytes, mode: int) -> None:
            info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            info.external_attr = (0o100000 | mode) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, content)

        # The metadata comes last, as the format of wheels recommends.
        for path in sorted((p for p in files.rglob("*") if p.is_file()), key=lambda p: (dist_info in p.parents, p)):
            name, content = path.relative_to(files).as_posix(), path.read_bytes()
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            records.append(f"{name},sha256={digest},{len(content)}")
            add(name, content, 0o755 if path.stat().st_mode & 0o100 else 0o644)
        record = f"{dist_info.name}/RECORD"
        add(record, "\n".join([*records, f"{record},,", ""]).encode(), 0o644)


def main() -> int:
    files, out = map(pathlib.Path, sys.argv[1:])
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    # The backend reports its progress on stdout, which is for the path.
    stdout, sys.stdout = sys.stdout, sys.stderr
    dist_info = files / scikit_build_core.build.prepare_metadata_for_build_wheel(str(files))
    sys.stdout = stdout
    name = dist_info.name.removesuffix(".dist-info")
    wheel = out / f"{name}-{tag_of(dist_info)}.whl"
    pack(files, dist_info, wheel)
    print(wheel)
    return 0


if __name__ == "__main__":
    sys.exit(main())
