"""Image building: archives that containerd imports, identical bytes for identical input, caching."""

import hashlib
import json
import os
import tarfile
from pathlib import Path

import pytest

from testbed import images
from testbed.errors import BedError
from testbed.images import WORKLOAD, Recipe, Tree, archive

TOY = "baton.test/toy:1"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def read(image: tarfile.TarFile, name: str) -> bytes:
    member = image.extractfile(name)
    assert member is not None
    return member.read()


def make_toy(monkeypatch: pytest.MonkeyPatch, compiler: str, made: list[str]) -> Path:
    """An image with one file, as built by the given compiler."""

    def tree(_: Path) -> Tree:
        made.append(compiler)
        return Tree(content={"toy": b"toy"})

    monkeypatch.setitem(images.RECIPES, TOY, Recipe(tree, {"Entrypoint": ["/toy"]}, lambda: [compiler]))
    return archive(TOY)


def test_an_archive_names_its_image_and_the_digest_of_its_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    with tarfile.open(make_toy(monkeypatch, "any", [])) as image:
        (manifest,) = json.loads(read(image, "manifest.json"))
        config = json.loads(read(image, manifest["Config"]))
        (layer,) = manifest["Layers"]
        assert manifest["RepoTags"] == [TOY]
        assert config["config"]["Entrypoint"] == ["/toy"]
        assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(read(image, layer)).hexdigest()}"]


def test_an_image_is_built_once_and_removed_after_a_week_without_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[str] = []
    first = make_toy(monkeypatch, "old", made)
    assert make_toy(monkeypatch, "old", made) == first
    assert made == ["old"]
    second = make_toy(monkeypatch, "newer", made)
    assert first.exists()
    assert second != first
    os.utime(first, (0, 0))
    make_toy(monkeypatch, "newest", made)
    assert not first.exists()
    assert second.exists()


@pytest.mark.cluster
def test_the_workload_image_has_python_its_libraries_and_the_cuda_bindings(needs_kubelets: None) -> None:
    with tarfile.open(archive(WORKLOAD)) as image, tarfile.open(fileobj=image.extractfile("layer.tar")) as layer:
        names = layer.getnames()
    assert "usr/local/bin/python3" in names
    assert any(name.endswith("/json/decoder.py") for name in names)
    assert any(name.endswith("/libc.so.6") for name in names)
    assert any(name.startswith("opt/python/cuda/bindings/driver") for name in names)
    assert not any("__pycache__" in name for name in names)


def test_a_layer_has_its_folders_modes_and_links(tmp_path: Path) -> None:
    tree = Tree(content={"etc/deep/file": b"text"}, links={"bin/sh": "busybox"})
    tree.add_program(Path("/bin/true"), "bin/busybox")
    out = tmp_path / "layer.tar"
    tree.write(out)
    with tarfile.open(out) as layer:
        assert layer.getnames()[:4] == ["bin", "etc", "etc/deep", "tmp"]
        assert layer.getmember("tmp").mode == 0o1777
        assert layer.getmember("bin/busybox").mode == 0o755
        assert layer.getmember("etc/deep/file").mode == 0o644
        assert layer.getmember("bin/sh").linkname == "busybox"


def test_an_unknown_image_is_rejected_with_a_list_of_known_ones() -> None:
    with pytest.raises(BedError, match=r"there is no image 'alpine' in the bed; it has baton\.test/pause:1, "):
        archive("alpine")
