import os
import resource

import bad_models
import onnx
import pytest
from batch_models import draw, node, write

from optimizer.errors import ModelError, UnsafeModel
from optimizer.onnx_files import external_files, load_proto, sha256_of, write_model


def refused(path) -> str:
    with pytest.raises(ModelError) as caught:
        external_files(load_proto(path), path.parent)
    assert len(str(caught.value).splitlines()) == 2
    assert str(path) in str(caught.value) or str(path.parent) in str(caught.value)
    return caught.value.what


def test_a_path_that_does_not_exist(tmp_path):
    assert "does not exist" in refused(tmp_path / "none.onnx")


def test_a_directory(tmp_path):
    assert "is a directory" in refused(tmp_path)


def test_an_empty_file(tmp_path):
    path = tmp_path / "m.onnx"
    path.touch()
    assert "is empty" in refused(path)


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "m.onnx")
    assert "cannot be read" in refused(tmp_path / "m.onnx")


def test_a_truncated_model(tmp_path):
    assert "cut short" in refused(bad_models.truncated(tmp_path / "m.onnx"))


def test_text_is_recognized(tmp_path):
    path = tmp_path / "m.onnx"
    path.write_text("<html>404: not found</html>\n")
    assert "is a text file" in refused(path)


def test_a_git_lfs_pointer_is_recognized(tmp_path):
    path = tmp_path / "m.onnx"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")
    assert "Git LFS pointer" in refused(path)


def test_bytes_that_happen_to_parse_are_not_a_model(tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(onnx.ModelProto(producer_name="\x01nobody").SerializeToString())
    assert "not ONNX" in refused(path)


def test_missing_external_data(tmp_path):
    assert "is not there" in refused(bad_models.with_external_data(tmp_path / "m.onnx"))


def test_external_data_that_is_too_short(tmp_path):
    path = bad_models.with_external_data(tmp_path / "m.onnx")
    (tmp_path / "weights.bin").write_bytes(b"abc")
    assert "which has 3 bytes" in refused(path)


@pytest.mark.parametrize("make", [bad_models.with_external_data, bad_models.hidden_external_data])
@pytest.mark.parametrize("location", ["../secret", "/etc/passwd", "a/../../secret", "..\\secret", ""])
def test_locations_outside_the_folder(tmp_path, make, location):
    bad_models.weights_for(tmp_path, name="secret")
    folder = tmp_path / "model"
    folder.mkdir()
    path = make(folder / "m.onnx", location)
    with pytest.raises(UnsafeModel):
        external_files(load_proto(path), folder)


def test_a_link_out_of_the_folder_is_refused_without_being_followed(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    os.mkfifo(tmp_path / "pipe")  # opening it would block until the test's time-out
    (folder / "weights.bin").symlink_to(tmp_path / "pipe")
    path = bad_models.with_external_data(folder / "m.onnx")
    with pytest.raises(UnsafeModel, match="symbolic link"):
        external_files(load_proto(path), folder)


def test_a_linked_folder_below_the_model_is_refused(tmp_path):
    bad_models.weights_for(tmp_path / "elsewhere")
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "data").symlink_to(tmp_path / "elsewhere")
    path = bad_models.with_external_data(folder / "m.onnx", "data/weights.bin")
    with pytest.raises(UnsafeModel, match="symbolic link"):
        external_files(load_proto(path), folder)


def test_external_data_in_a_folder_below_is_fine(tmp_path):
    weights = bad_models.weights_for(tmp_path / "data")
    path = bad_models.with_external_data(tmp_path / "m.onnx", "data/weights.bin")
    assert external_files(load_proto(path), tmp_path) == {"data/weights.bin": weights}


def test_the_hash_covers_external_data(tmp_path):
    weights = bad_models.weights_for(tmp_path)
    path = bad_models.with_external_data(tmp_path / "m.onnx")
    before = sha256_of(path, {"weights.bin": weights})
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x99")
    assert sha256_of(path, {"weights.bin": weights}) != before
    assert sha256_of(path, {}) != before


def test_a_written_model_is_complete_and_leaves_nothing_else(tmp_path):
    weights = bad_models.weights_for(tmp_path / "from")
    path = bad_models.with_external_data(tmp_path / "from" / "m.onnx")
    target = tmp_path / "to" / "copy.onnx"
    copies = write_model(load_proto(path), target, {"weights.bin": weights})
    assert sorted(file.name for file in target.parent.iterdir()) == ["copy.onnx", "weights.bin"]
    assert copies["weights.bin"].read_bytes() == weights.read_bytes()
    assert copies["weights.bin"].stat().st_nlink == 1
    onnx.checker.check_model(str(target))


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    nodes = [node("MatMul", "x w", "y")]
    path = write(tmp_path / "m.onnx", nodes, {"x": ["N", 4]}, {"y": ["N", 4]}, {"w": draw(4, 4)})
    larger = write(tmp_path / "l.onnx", nodes, {"x": ["N", 64]}, {"y": ["N", 64]}, {"w": draw(64, 64)})
    before, proto = path.read_bytes(), load_proto(larger)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))  # the disk is "full" after 4 KiB
    try:
        with pytest.raises(OSError, match="File too large"):
            write_model(proto, path, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["l.onnx", "m.onnx"]
