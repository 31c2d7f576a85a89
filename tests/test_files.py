"""Files: what is read ends, and what is written is whole, in no other file's place."""

import os
import stat
from pathlib import Path

import pytest

from sim.files import FileError, check_writable, read_bytes, read_text, write_bytes, write_text


def refused(call, *arguments, **keywords):
    with pytest.raises(FileError) as caught:
        call(*arguments, **keywords)
    return str(caught.value)


# Reading


def test_what_is_no_regular_file_is_named_and_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert refused(read_bytes, tmp_path / "pipe", "a case file") == f"{tmp_path}/pipe: is a pipe; a case file is needed"
    assert refused(read_bytes, tmp_path) == f"{tmp_path}: is a directory; a file is needed"
    assert refused(read_bytes, Path(os.devnull)) == f"{os.devnull}: is a device; a file is needed"
    assert refused(read_bytes, tmp_path / "none").endswith("none: cannot be read: No such file or directory")
    assert "embedded null" in refused(read_bytes, Path("a\0b"))


def test_links_are_read_through_and_those_without_an_end_are_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"text")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert read_bytes(tmp_path / "link") == b"text"
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert "symbolic links" in refused(read_bytes, tmp_path / "a")


def test_too_long_and_not_utf_8(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"12345\xff")
    assert read_bytes(path, most_bytes=6) == b"12345\xff"
    assert refused(read_bytes, path, "a config", 5) == f"{path}: has more than 5 bytes; a config has fewer"
    assert refused(read_text, path) == f"{path}: is not UTF-8: invalid start byte at byte 5"


# Writing


def test_a_file_that_is_there_keeps_its_mode_and_a_new_one_is_as_usual(tmp_path):
    path = tmp_path / "file"
    write_text(path, "one")
    plain = tmp_path / "plain"
    plain.touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)
    path.chmod(0o640)
    write_text(path, "two \ud800")
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("two \\ud800", 0o640)
    assert sorted(os.listdir(tmp_path)) == ["file", "plain"]


def test_nothing_is_left_where_writing_fails(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_text("before")

    def full(*paths):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert refused(write_text, path, "after") == f"{path}: cannot be written: No space left on device"
    assert (os.listdir(tmp_path), path.read_text()) == (["file"], "before")


@pytest.mark.parametrize("write", [lambda *given: write_bytes(given[0], b"new", *given[1:]), check_writable])
def test_links_folders_pipes_and_inputs_are_not_written_over(tmp_path, write):
    case, link, pipe = tmp_path / "case", tmp_path / "link", tmp_path / "pipe"
    case.write_text("old")
    link.symlink_to(case)
    os.mkfifo(pipe)
    assert "it is a link" in refused(write, link)
    assert "it is a pipe" in refused(write, pipe)
    assert "it is a directory" in refused(write, tmp_path)
    assert "it is read here" in refused(write, case, [case])
    assert "it is read here" in refused(write, case, [link])
    assert case.read_text() == "old"
    assert link.is_symlink()


def test_a_folder_that_is_no_folder(tmp_path):
    (tmp_path / "file").touch()
    assert "cannot be written" in refused(write_text, tmp_path / "file" / "inside", "text")
    assert "cannot be written" in refused(check_writable, tmp_path / "none" / "inside")
