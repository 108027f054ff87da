"""The files to run the service with: they can be read, fit each other and the settings, and name only metrics that exist."""

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from app.infra.settings import SHARED_NAMES, Settings

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
WATCHING = [DEPLOY / "grafana/rondo.json", DEPLOY / "prometheus/alerts.yaml", DEPLOY / "prometheus/adapter-rules.yaml"]
_METRIC = re.compile(r"\brondo_[a-z0-9_]+")


def manifests() -> list[dict[str, Any]]:
    named = yaml.safe_load((DEPLOY / "kubernetes/kustomization.yaml").read_text())["resources"]
    return [item for name in named for item in yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text())]


def of_kind(*kinds: str) -> list[Any]:
    return [item for item in manifests() if item["kind"] in kinds]


def seconds(text: str) -> int:
    assert text.endswith("s")
    return int(text[:-1])


class TestMetrics:
    @pytest.mark.parametrize("file", WATCHING, ids=lambda file: file.name)
    async def test_every_metric_that_is_watched_is_exported(self, http: httpx.AsyncClient, file: Path) -> None:
        text = (await http.get("/metrics")).text
        exported = set()
        for family in text_string_to_metric_families(text):
            endings = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
            exported |= {family.name + ending for ending in endings}
        watched = set(_METRIC.findall(file.read_text()))
        assert watched
        assert watched - exported == set()

    def test_the_dashboard_has_a_query_on_every_panel_and_room_for_each(self) -> None:
        panels = json.loads(WATCHING[0].read_text())["panels"]
        assert all(target["expr"] for panel in panels for target in panel["targets"])
        places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
        assert len(set(places)) == len(panels) >= 12

    def test_every_alert_says_what_it_means_and_how_grave_it_is(self) -> None:
        rules = yaml.safe_load(WATCHING[1].read_text())["groups"][0]["rules"]
        for rule in rules:
            assert rule["annotations"]["summary"]
            assert rule["labels"]["severity"] in ("page", "warning")
            assert rule["expr"].count("(") == rule["expr"].count(")")
        assert len({rule["alert"] for rule in rules}) == len(rules)


class TestCompose:
    def test_there_are_two_api_processes_behind_a_proxy_and_all_that_they_need(self) -> None:
        services = COMPOSE["services"]
        assert set(services) == {"proxy", "api", "worker", "migrate", "postgres", "valkey"}
        assert services["api"]["deploy"]["replicas"] == 2
        assert [name for name, service in services.items() if "ports" in service] == ["proxy"]

    def test_migrations_run_once_and_first(self) -> None:
        services = COMPOSE["services"]
        assert services["migrate"]["restart"] == "no"
        for name in ("api", "worker"):
            assert services[name]["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}

    def test_a_process_has_the_time_it_takes_to_drain(self) -> None:
        drain = int(COMPOSE["x-rondo"]["environment"]["RONDO_DRAIN_SECONDS"])
        assert seconds(COMPOSE["x-rondo"]["stop_grace_period"]) >= 2 * drain + 5

    def test_no_password_stands_in_it(self) -> None:
        for service in COMPOSE["services"].values():
            for name, value in service.get("environment", {}).items():
                assert not re.search("KEY|PASSWORD", name) or str(value).startswith("${")

    def test_what_it_mounts_is_there(self) -> None:
        for mount in COMPOSE["services"]["proxy"]["volumes"]:
            assert (ROOT / mount.partition(":")[0]).is_file()


class TestSettings:
    def test_every_setting_that_is_named_exists(self) -> None:
        named = set(COMPOSE["x-rondo"]["environment"])
        for item in of_kind("Deployment"):
            named |= {one["name"] for one in item["spec"]["template"]["spec"]["containers"][0].get("env", ())}
        for config in of_kind("ConfigMap"):
            named |= set(config["data"])
        known = {f"RONDO_{name.upper()}" for name in Settings.model_fields} | SHARED_NAMES
        assert named - known == set()


class TestKubernetes:
    def test_everything_runs_the_one_image_as_an_ordinary_user(self) -> None:
        workloads = of_kind("Deployment", "Job")
        assert [item["metadata"]["name"] for item in workloads] == ["rondo-migrate", "rondo-api", "rondo-worker"]
        for item in workloads:
            pod = item["spec"]["template"]["spec"]
            assert pod["securityContext"]["runAsNonRoot"] is True
            (container,) = pod["containers"]
            assert container["image"] == "rondo"
            assert container["args"] in (["migrate"], ["serve"], ["worker"])
            assert container["securityContext"]["allowPrivilegeEscalation"] is False

    def test_a_process_has_the_time_it_takes_to_drain(self) -> None:
        (config,) = of_kind("ConfigMap")
        drain = int(config["data"]["RONDO_DRAIN_SECONDS"])
        for item in of_kind("Deployment"):
            pod = item["spec"]["template"]["spec"]
            pause = pod["containers"][0].get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
            assert pod["terminationGracePeriodSeconds"] >= pause + 2 * drain + 5

    def test_probes_ask_what_the_service_answers(self) -> None:
        (api,) = [item for item in of_kind("Deployment") if item["metadata"]["name"] == "rondo-api"]
        (container,) = api["spec"]["template"]["spec"]["containers"]
        probes = {name: container[name]["httpGet"]["path"] for name in ("readinessProbe", "livenessProbe", "startupProbe")}
        assert probes == {"readinessProbe": "/readyz", "livenessProbe": "/healthz", "startupProbe": "/healthz"}

    def test_selectors_find_their_pods_and_scalers_their_workloads(self) -> None:
        pods = {item["metadata"]["name"]: item["spec"]["template"]["metadata"]["labels"] for item in of_kind("Deployment")}
        for service in of_kind("Service"):
            assert service["spec"]["selector"] in pods.values()
        scaled = {
            item["spec"]["scaleTargetRef"]["name"]: item["spec"]["metrics"][0] for item in of_kind("HorizontalPodAutoscaler")
        }
        assert set(scaled) == set(pods)
        assert scaled["rondo-worker"]["external"]["metric"]["name"] == "rondo_queue_wait_seconds"


class TestProxy:
    TEXT = (DEPLOY / "nginx/rondo.conf").read_text()

    def test_it_never_logs_a_query_in_which_a_token_may_stand(self) -> None:
        (written,) = re.findall(r"log_format rondo '(.*)';", self.TEXT)
        assert not re.search(r"\$(request|args|query_string|request_uri|http_referer)\b", written)
        assert re.findall(r"access_log \S+ (\S+);", self.TEXT) == ["rondo"]

    def test_it_holds_no_event_back(self) -> None:
        assert "proxy_buffering off;" in self.TEXT
        assert "gzip off;" in self.TEXT


class TestImage:
    TEXT = (ROOT / "Dockerfile").read_text()

    def test_it_is_built_from_the_lock_and_runs_as_an_ordinary_user(self) -> None:
        assert "--require-hashes -r requirements/${REQUIREMENTS}.txt" in self.TEXT
        assert re.search(r"^USER 10001$", self.TEXT, re.MULTILINE)
        assert "HEALTHCHECK" in self.TEXT

    def test_it_leaves_out_only_packages_that_are_in_the_lock(self) -> None:
        (left_out,) = re.findall(r"uv pip uninstall --python \S+ (.*)", self.TEXT)
        lock = (ROOT / "requirements/base.txt").read_text()
        assert all(f"\n{name}==" in f"\n{lock}" for name in left_out.split())
