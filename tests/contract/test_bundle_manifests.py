"""The bundle against the schemas of those who read it: Kubernetes, the operators' CRDs, Compose, Kustomize."""

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from bundles import ON_GPU, named, on_disk, on_gpu, recorded

from deploy.bundle import bundle_from_recommendation, write_bundle

SCHEMAS = Path(__file__).parents[1] / "schemas"
OPERATORS = json.loads((SCHEMAS / "operators.json").read_text())
KUBERNETES_VERSIONS = ("1.31", "1.37")
CASES = {
    "recorded": recorded(),
    "on a GPU": on_gpu(),
    "on a GPU, without native backend": on_gpu("tensorrt_rtx"),
    "an odd name": named("Ä b-c's: {x}"),
}
NOT_MANIFESTS = ("kustomization.yaml", "prometheus-adapter-values.yaml")
COMPONENTS = (
    (),
    ("repository-volume",),
    ("native-backend",),
    ("repository-object-storage",),
    ("autoscaling-hpa",),
    ("autoscaling-hpa", "argo-rollouts"),
    ("autoscaling-keda", "argo-rollouts", "repository-volume"),
)


def texts(case: str) -> Mapping[str, str]:
    return bundle_from_recommendation(*CASES[case], options=ON_GPU).texts


def check(manifest: dict[Any, Any]) -> None:
    """Against the operator's schema where it is one of theirs, and Kubernetes' own otherwise."""
    kind = manifest["kind"]
    if kind in OPERATORS["properties"]:
        schema = {**OPERATORS["properties"][kind], "definitions": OPERATORS["definitions"]}
        jsonschema.Draft7Validator(schema).validate(manifest)
        return
    for version in KUBERNETES_VERSIONS:
        kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize("case", CASES)
def test_every_manifest_fits_its_schema(case: str) -> None:
    checked = set()
    for path, text in texts(case).items():
        if (
            path.startswith(("kubernetes/", "kserve/"))
            and path.endswith(".yaml")
            and not path.endswith(NOT_MANIFESTS)
        ):
            for manifest in yaml.safe_load_all(text):
                check(manifest)
                checked.add(manifest["kind"])
    assert set(OPERATORS["properties"]) <= checked
    assert {"Deployment", "HorizontalPodAutoscaler", "PodDisruptionBudget", "NetworkPolicy", "Job"} <= checked


def test_the_job_of_a_rollout_is_the_smoke_job() -> None:
    files = texts("recorded")
    (template,) = yaml.safe_load_all(files["kubernetes/components/argo-rollouts/analysis-smoke.yaml"])
    (job,) = yaml.safe_load_all(files["kubernetes/smoke/job.yaml"])
    (metric,) = template["spec"]["metrics"]
    spec = metric["provider"]["job"]["spec"]
    container = spec["template"]["spec"]["containers"][0]
    assert container["args"][0] == "{{args.url}}"
    container["args"][0] = job["spec"]["template"]["spec"]["containers"][0]["args"][0]
    assert spec == job["spec"]


@pytest.mark.parametrize("case", CASES)
def test_the_compose_file_fits_its_schema(case: str) -> None:
    schema = json.loads((SCHEMAS / "compose_spec.json").read_text())
    compose = yaml.safe_load(texts(case)["compose.yaml"])
    jsonschema.Draft7Validator(schema).validate(compose)
    compose["services"]["triton"]["imgae"] = "x"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft7Validator(schema).validate(compose)


@pytest.mark.parametrize("case", CASES)
def test_every_file_that_compose_mounts_is_there(case: str) -> None:
    files = texts(case)
    mounts = [
        volume.split(":")[0].removeprefix("./")
        for service in yaml.safe_load(files["compose.yaml"])["services"].values()
        for volume in service.get("volumes", ())
        if volume.startswith("./")
    ]
    assert len(mounts) >= 5
    for mount in mounts:
        assert any(path == mount or path.startswith(f"{mount}/") for path in files), mount


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    write_bundle(bundle_from_recommendation(*on_disk(folder)), folder / "bundle")
    return folder / "bundle"


def kustomized(folder: Path) -> list[Any]:
    if shutil.which("kubectl") is None:
        pytest.skip("there is no kubectl on PATH")
    done = subprocess.run(
        ["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


@pytest.mark.parametrize(
    "folder",
    [
        "kubernetes/overlays/staging",
        "kubernetes/overlays/native",
        "kubernetes/smoke",
        "kubernetes/smoke-native",
        "kserve",
    ],
)
def test_kustomize_builds(written: Any, folder: str) -> None:
    manifests = kustomized(written / folder)
    assert manifests
    for manifest in manifests:
        check(manifest)


@pytest.mark.parametrize("components", COMPONENTS, ids=lambda names: "+".join(names) or "none")
def test_kustomize_builds_production_with_its_components(
    written: Any, tmp_path: Path, components: tuple[Any, ...]
) -> None:
    folder = tmp_path / "bundle"
    shutil.copytree(written, folder)
    path = folder / "kubernetes" / "overlays" / "production" / "kustomization.yaml"
    kustomization = yaml.safe_load(path.read_text())
    kustomization["components"] = [f"../../components/{name}" for name in components or ("autoscaling-keda",)]
    path.write_text(yaml.safe_dump(kustomization))
    manifests = kustomized(path.parent)
    for manifest in manifests:
        check(manifest)
    kinds = {manifest["kind"]: manifest for manifest in manifests}
    assert {m["metadata"].get("namespace", "cnn-production") for m in manifests} == {"cnn-production"}
    pods = kinds["Deployment"]["spec"]["template"]["spec"]
    assert pods["securityContext"]["runAsNonRoot"]
    for container in (*pods["containers"], *pods.get("initContainers", ())):
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert not container["securityContext"]["allowPrivilegeEscalation"]
    (volume,) = (volume for volume in pods["volumes"] if volume["name"] == "models")
    assert ("persistentVolumeClaim" in volume) == ("repository-volume" in components)
    filled = not {"repository-volume", "repository-object-storage"} & set(components)
    assert bool(pods.get("initContainers")) == filled
    if "argo-rollouts" in components:
        scaler = kinds.get("ScaledObject") or kinds["HorizontalPodAutoscaler"]
        assert scaler["spec"]["scaleTargetRef"]["kind"] == "Rollout"
