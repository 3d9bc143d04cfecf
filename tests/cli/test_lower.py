"""`pipesim lower`: instruction lists side by side."""

import json

import pytest

from pipesim.cli import main

PAIRED = """\
slot  rank 0             rank 1             rank 2
   1  0F0                .                  .
   2  0SEND_F0           1RECV_F0           .
   3  0F1                1F0                .
   4  0SEND_F1           1SEND_F0&1RECV_F1  2RECV_F0
   5  .                  1F1                2F0
   6  .                  .                  2B0
   7  .                  1SEND_F1&1RECV_B0  2SEND_B0&2RECV_F1
   8  .                  1B0                2F1
   9  0RECV_B0           .                  2B1
  10  0B0                1SEND_B0&1RECV_B1  2SEND_B1
  11  .                  1B1                .
  12  0RECV_B1           1SEND_B1           .
  13  0B1                .                  .
"""


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "three.toml"
    path.write_text(
        '[run]\nschedule = "1f1b"\nmicrobatches = 2\n'
        "[stages]\ncount = 3\nforward_ms = 1\nbackward_ms = 2\n"
    )
    return str(path)


def test_the_two_ends_of_a_transfer_stand_in_one_row(config, capsys):
    assert main(["lower", config, "--protocol", "paired"]) == 0
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    assert [line.split() for line in lines[1:]] == [line.split() for line in PAIRED.splitlines()]
    assert lines[0].startswith("1f1b under paired, ")


def test_deepspeeds_names(config, capsys):
    assert main(["lower", config, "--protocol", "odd_even", "--names", "deepspeed"]) == 0
    printed = capsys.readouterr().out
    for name in ("ForwardPass 1", "BackwardPass 1", "SendActivation 0", "RecvGrad 1"):
        assert name in printed
    looped = ["--set", "run.schedule=interleaved", "--set", "stages.count=6"]
    more = ["--set", "devices.ranks=3", "--set", "run.microbatches=3"]
    assert main(["lower", config, *looped, *more, "--names", "deepspeed"]) == 0
    assert "ForwardPass 0 of stage 3" in capsys.readouterr().out


def test_what_hangs_is_shown_as_far_as_it_gets(config, capsys):
    assert main(["lower", config, "--protocol", "rendezvous"]) == 3
    captured = capsys.readouterr()
    assert captured.out.splitlines()[-1].split() == [
        "stuck",
        ">0RECV_B0<",
        ">1SEND_F1<",
        ">2SEND_B0<",
    ]
    assert "ranks 1, 2 wait for each other" in captured.err
    assert main(["lower", config, "--protocol", "rendezvous", "--json"]) == 3
    values = json.loads(capsys.readouterr().out)
    assert values["ranks"][0][:2] == ["0F0", "0SEND_F0"]
    assert [stands["rank"] for stands in values["deadlock"]] == [1, 2]


def test_a_schedule_that_does_not_fit_names_the_config(config, capsys, tmp_path):
    (tmp_path / "two.csv").write_text("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")
    assert main(["lower", config, "--set", "run.schedule=two.csv"]) == 2
    assert f"{config}: run.schedule: two is for 2 stages" in capsys.readouterr().err
