"""Safe files: a new one is there whole or not at all."""

import pytest

from pipesim.base.files import replacing


def test_after_a_failure_what_was_there_stays_and_nothing_is_left_behind(tmp_path):
    target = tmp_path / "out.txt"
    target.write_text("before")
    with pytest.raises(AttributeError), replacing(target) as temporary:
        print("half", file=temporary.write_text("half"))  # a number is no file
    assert target.read_text() == "before"
    assert list(tmp_path.iterdir()) == [target]


def test_the_file_is_not_there_before_the_end_and_its_folder_is_made(tmp_path):
    target = tmp_path / "new" / "out.txt"
    with replacing(target) as temporary:
        temporary.write_text("whole")
        assert not target.exists()
        assert temporary.suffix == ".txt"
    assert target.read_text() == "whole"


def test_an_error_names_the_file_that_was_asked_for(tmp_path):
    (tmp_path / "file").write_text("")
    target = tmp_path / "file" / "out.txt"
    with pytest.raises(OSError) as error, replacing(target):  # noqa: PT011  # of any kind
        pass
    assert error.value.filename == str(target)
