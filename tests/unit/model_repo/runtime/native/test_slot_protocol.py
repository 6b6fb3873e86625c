"""The slot protocol in C, built with sanitizers, against packets that make no sense."""

import random
import shutil
import struct
import subprocess
from pathlib import Path

import numpy_slots
import pytest

from model_repo.native_library import SOURCE
from model_repo.runtime.tritune_gpu import slots

SUPPORT = Path(__file__).parents[4] / "support"
FLAGS = (
    "-std=c11",
    "-g",
    "-O1",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-fno-sanitize-recover",
)
MEMORY, THREADS = "address,undefined", "thread"
PACKETS = 20_000

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


def built(folder: Path, main: str, *parts: str, sanitizers: str = MEMORY) -> Path:
    """Compile a program of tests/support with these parts of the backend."""
    program = folder / main
    sources = [str(SUPPORT / f"{main}.c"), *(str(SOURCE / part) for part in parts)]
    command = ["cc", *FLAGS, f"-fsanitize={sanitizers}", f"-I{SOURCE}", "-o", str(program), *sources, "-pthread"]
    subprocess.run(command, check=True, timeout=120)
    return program


def numpy_model(folder: Path) -> Path:
    """Write a version folder whose runner executes numpy; return its main file."""
    runtime = SOURCE.parent
    folder.mkdir(exist_ok=True)
    shutil.copytree(runtime / "tritune_gpu", folder / "tritune_gpu", ignore=shutil.ignore_patterns("__pycache__"))
    numpy_slots.serve_numpy(folder)
    return Path(shutil.copy(runtime / "slots_model.py", folder))


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("harness"), "slot_harness", "slot.c", "runner.c")


def drawn_packets(count: int, seed: int) -> list[bytes]:
    """Messages as they should be, with some bytes changed, cut off, repeated or extended."""
    rng = random.Random(seed)
    packets = []
    for _ in range(count):
        number = rng.choices((rng.randrange(4), 64, 65), weights=(50, 1, 1))[0]
        tensors = [
            (
                rng.choice((0, 64, 4000, 2**63, 2**64 - 64)),
                rng.choice((0, 4, 96, 2**40)),
                tuple(rng.choices((1, 3, 8), k=rng.randrange(5))),
            )
            for _ in range(number)
        ]
        kind = rng.randrange(1, 7)
        packet = bytearray(
            slots.encode(kind, tensors, rows=rng.randrange(9), size=4096, text="x" * rng.randrange(40))
        )
        for _ in range(rng.randrange(4)):
            at = rng.randrange(len(packet))
            packet[at] = rng.choice((0, 1, 127, 255, rng.randrange(256)))
        if number and rng.random() < 0.05:  # the last tensor has more dimensions than there is room for
            struct.pack_into("<I", packet, 40 + 88 * number - 8, rng.choice((9, 2**20, 2**32 - 1)))
        cut = rng.random()
        if cut < 0.2:
            del packet[rng.randrange(len(packet)) :]
        elif cut < 0.3:
            packet += rng.randbytes(rng.choice((1, 100, 9000)))
        packets.append(bytes(packet))
    return packets


@needs_compiler
def test_no_packet_makes_the_c_side_read_or_write_elsewhere(harness: Path) -> None:
    packets = drawn_packets(PACKETS, seed=1)
    stream = b"".join(struct.pack("<I", len(packet)) + packet for packet in packets)
    ran = subprocess.run([harness, "packets"], input=stream, capture_output=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr.decode()
    sound = int(ran.stdout)
    assert PACKETS / 20 < sound < PACKETS, "some are as they should be, and some are not"


def test_the_python_side_refuses_packets_with_one_kind_of_error() -> None:
    refused = 0
    for packet in drawn_packets(PACKETS, seed=2):
        try:
            _, _, shapes = slots.decode(packet)
        except ValueError:
            refused += 1
        else:
            assert all(len(shape) <= slots.RANK for shape in shapes)
    assert 0 < refused < PACKETS


@needs_compiler
def test_a_runner_is_started_killed_and_ended_without_leaks(harness: Path, tmp_path: Path) -> None:
    script = numpy_model(tmp_path / "1")
    ran = subprocess.run([harness, "runner", script, "200"], capture_output=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr.decode()
    first, second, generations, is_gone = map(int, ran.stdout.split())
    assert (first, second, generations, is_gone) == (200, 200, 1, 1)


@pytest.fixture(scope="module", params=[MEMORY, THREADS])
def stub(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    parts = ("backend.c", "copies.c", "slot.c", "runner.c")
    program = built(tmp_path_factory.mktemp("stub"), "triton_stub", *parts, sanitizers=request.param)
    if request.param == THREADS and subprocess.run([program, "1"], capture_output=True, check=False).returncode:
        pytest.skip("ThreadSanitizer does not start here: it needs less randomized addresses")
    return program


@needs_compiler
@pytest.mark.parametrize(("major", "said"), [("1", "fits"), ("2", "this server has 2.19")])
def test_a_server_with_another_interface_is_refused(stub: Path, major: str, said: str) -> None:
    ran = subprocess.run([stub, major], capture_output=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr.decode()
    assert said in ran.stdout.decode()


@needs_compiler
@pytest.mark.parametrize(("batches", "width", "helpers"), [(100, 256, 0), (5, 200_003, 3)])
def test_the_backend_answers_every_request_without_a_bad_access_a_leak_or_a_race(
    stub: Path, tmp_path: Path, batches: int, width: int, helpers: int
) -> None:
    numpy_model(tmp_path / "1")
    command = map(str, (stub, tmp_path, batches, width))
    ran = subprocess.run(list(command), capture_output=True, timeout=240, check=False)
    assert ran.returncode == 0, ran.stderr.decode()[-3000:]
    *workers, threads = [[int(number) for number in line.split()] for line in ran.stdout.splitlines()]
    for answered, wrong, failed, missing in workers:
        bad = 2 * batches // 5  # in each half, one request in every fifth batch is wrong
        assert wrong == missing == 0
        assert failed <= 4, "the runner was killed: one batch of each instance"
        assert answered == 2 * batches * 4 - bad - failed
    assert threads == [helpers, 0], "both instances share the threads that copy, which end with the model"
