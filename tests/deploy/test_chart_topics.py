"""Who makes the topics: a Job, Strimzi, or nobody; and the message that `helm test` sends."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka.admin._acl import AclOperation
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from sidecar.kafka.admin.cluster import Topic
from sidecar.kafka.admin.topics import Found, notes, problems, topic_names
from sidecar.settings import Settings
from sidecar.settings.table import per_policy
from tests.deploy.charts import APPLICATION, CASES, Helm, Manifest, Rendered, RenderFailed, env
from tests.deploy.custom_kinds import assert_known
from tests.deploy.program import parse
from tests.docs import acls
from tests.docs.pages import DOCS, dialogues

DEFAULT, JOB, STRIMZI = (
    next(path for path in CASES if path.stem == f"{name}-values") for name in ("default", "job", "strimzi-topics")
)
SCRAM = (
    "kafka.tls.enabled=true",
    "kafka.sasl.mechanism=SCRAM-SHA-512",
    "kafka.sasl.username=sidecar",
    "kafka.sasl.existingSecret=sidecar",
    "topics.manage=strimzi",
    "topics.strimzi.cluster=my-cluster",
)
BROKER = {"cleanup.policy": "delete", "message.timestamp.type": "CreateTime", "max.message.bytes": "1048588"}


def hooks(manifest: Manifest) -> set[str]:
    """Return the events at which Helm makes this."""
    return set(manifest["metadata"].get("annotations", {}).get("helm.sh/hook", "").split(","))


def secrets(pod: Manifest) -> set[str]:
    """Return the secrets that a pod reads."""
    (container,) = pod["containers"]
    values = [value["secretKeyRef"]["name"] for value in env(container).values() if "secretKeyRef" in value]
    return {*values, *(each["secret"]["secretName"] for each in pod["volumes"] if "secret" in each)}


def test_the_job_creates_the_topics_of_the_release_before_its_pods(helm: Helm) -> None:
    rendered = helm.render(APPLICATION, JOB)
    job, settings = rendered.one("Job"), rendered.one("ConfigMap", "-topics")
    assert hooks(job) == hooks(settings) == {"pre-install", "pre-upgrade"}
    assert int(settings["metadata"]["annotations"]["helm.sh/hook-weight"]) < 0
    for each in (job, settings):
        assert each["metadata"]["annotations"]["helm.sh/hook-delete-policy"] == "before-hook-creation,hook-succeeded"
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert parse(container["args"]) == "topics create"
    assert "--partitions=12" in container["args"]
    assert "--origin=retry-test" in container["args"]
    assert settings["data"]["config.yaml"] == rendered.config_text()
    assert {"name": "retry-sidecar-config", "configMap": {"name": settings["metadata"]["name"]}} in pod["volumes"]
    assert pod["serviceAccountName"] == "admin"


def test_the_job_has_a_login_of_its_own_and_no_secret_of_the_sidecar(helm: Helm) -> None:
    rendered = helm.render(APPLICATION, JOB)
    pod = rendered.one("Job")["spec"]["template"]["spec"]
    assert secrets(pod) == {"kafka-ca", "topics-admin"}
    (container,) = pod["containers"]
    assert env(container)["KAFKA_RETRY_CLIENT_SASL_USERNAME"] == {
        "secretKeyRef": {"name": "topics-admin", "key": "user"}
    }
    assert env(container)["HTTPS_PROXY"] == "http://proxy:3128"
    assert "HTTPS_PROXY" not in env(rendered.sidecar)
    own = secrets({**rendered.pod, "containers": [rendered.sidecar]})
    assert own == {"kafka-ca", "sidecar", "retry-sidecar-api", "retry-sidecar-webhook"}


def test_a_certificate_of_its_own_is_mounted_in_the_job(helm: Helm) -> None:
    values = ["topics.manage=job", "topics.job.kafka.tls.client.existingSecret=admin"]
    (case,) = [path for path in CASES if path.stem == "strimzi-tls-values"]
    pod = helm.render(APPLICATION, case, values=values).one("Job")["spec"]["template"]["spec"]
    assert secrets(pod) == {"my-cluster-cluster-ca-cert", "admin"}


def test_nothing_creates_topics_unless_asked(helm: Helm) -> None:
    rendered = helm.render(APPLICATION, DEFAULT)
    assert not rendered.kinds() & {"Job", "KafkaTopic", "KafkaUser"}
    assert rendered.config()["origin_topics"] == ["orders", "payments"]
    assert [each["metadata"]["name"] for each in rendered.all("Pod")] == ["rel-retry-sidecar-test"]


def topics_of(rendered: Rendered) -> dict[str, Topic]:
    """Return the topics that Strimzi would make, as the cluster describes them."""
    made = [each["spec"] for each in rendered.all("KafkaTopic")]
    every = frozenset({"READ", "WRITE", "DESCRIBE", "DESCRIBE_CONFIGS"})
    return {
        each["topicName"]: Topic(
            each["topicName"], "id", each["partitions"], each.get("replicas", 1), every,
            BROKER | {name: str(value) for name, value in each["config"].items()},
        )
        for each in made
    }  # fmt: skip


@pytest.mark.parametrize("bytes_max", [1_048_588, 20_000_000])
def test_the_program_has_nothing_to_say_of_strimzis_topics(helm: Helm, bytes_max: int) -> None:
    rendered = helm.render(APPLICATION, STRIMZI, values=[f"topics.strimzi.maxMessageBytes={bytes_max}"])
    settings = Settings(input_topic="Shop_Retry")
    topics = topics_of(rendered)
    entry, dlq, changelog, status = (topics.pop(name) for name in topic_names(settings))
    found = Found(entry, dlq, changelog, status)
    assert problems(settings, found) == ()
    assert notes(settings, found) == ()
    assert set(topics) == {"Shop_Retry-test"}
    assert [each.config["retention.ms"] for each in (entry, dlq)] == ["604800000", "2592000000"]


def test_strimzis_resources_are_for_its_cluster_and_have_names_that_kubernetes_takes(helm: Helm) -> None:
    rendered = helm.render(APPLICATION, STRIMZI, values=["topics.strimzi.namespace=kafka"])
    made = [*rendered.all("KafkaTopic"), *rendered.all("KafkaUser")]
    assert {each["metadata"]["labels"]["strimzi.io/cluster"] for each in made} == {"my-cluster"}
    assert {each["metadata"]["namespace"] for each in made} == {"kafka"}
    names = [each["metadata"]["name"] for each in made]
    assert all(name == name.lower() and "_" not in name for name in names)
    assert len(set(names)) == len(names)
    for each in rendered.all("KafkaTopic"):
        assert each["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    for each in (*made, *rendered.all("HTTPRoute")):
        assert_known(each)


def rules(user: Manifest) -> set[tuple[str, str, str, str]]:
    """Return (type, name, pattern, operation) of all rules."""
    given = user["spec"]["authorization"]["acls"]
    return {
        (rule["resource"]["type"], rule["resource"]["name"], rule["resource"]["patternType"], operation)
        for rule in given
        for operation in rule["operations"]
    }


def documented(*users: str) -> dict[str, set[tuple[str, str, str, str]]]:
    """Return the rules that the page of security grants, by user."""
    kinds = {
        ResourceType.TOPIC: "topic",
        ResourceType.GROUP: "group",
        ResourceType.TRANSACTIONAL_ID: "transactionalId",
    }
    patterns = {ResourcePatternType.LITERAL: "literal", ResourcePatternType.PREFIXED: "prefix"}
    found: dict[str, set[tuple[str, str, str, str]]] = {user: set() for user in users}
    pages = [block.commands for block in dialogues(DOCS / "how-to/security.md") if "acl" in block.marks]
    for binding in (each for commands in pages for command in commands for each in acls.bindings(command)):
        operation = "".join(word.capitalize() for word in AclOperation(binding.operation).name.split("_"))
        kind, pattern = kinds[ResourceType(binding.restype)], ResourcePatternType(binding.resource_pattern_type)
        if (user := binding.principal.removeprefix("User:")) in found:
            found[user].add((kind, binding.name, patterns[pattern], operation))
    return found


@pytest.mark.parametrize("with_token", [False, True])
def test_the_users_have_the_rights_of_the_page_and_no_others(helm: Helm, with_token: bool) -> None:
    token = ["apiToken.existingSecret=api"] if with_token else []
    rendered = helm.render(APPLICATION, DEFAULT, values=[*SCRAM, *token, "test.topic=checks"])
    wanted = documented("sidecar", "tester")
    control = {("topic", "retry", "literal", "Write")} if with_token else set()
    assert rules(rendered.one("KafkaUser", "sidecar")) == wanted["sidecar"] | control
    assert rules(rendered.one("KafkaUser", "-test")) == wanted["tester"]
    types = {each["spec"]["authentication"]["type"] for each in rendered.all("KafkaUser")}
    assert types == {"scram-sha-512"}


def test_the_users_are_those_who_log_in(helm: Helm) -> None:
    rendered = helm.render(APPLICATION, DEFAULT, values=SCRAM)
    sidecar, tester = env(rendered.sidecar), env(rendered.one("Pod", "-round-trip")["spec"]["containers"][0])
    names = {each["metadata"]["name"] for each in rendered.all("KafkaUser")}
    assert names == {sidecar["KAFKA_RETRY_CLIENT_SASL_USERNAME"], tester["KAFKA_RETRY_CLIENT_SASL_USERNAME"]}
    assert tester["KAFKA_RETRY_CLIENT_SASL_PASSWORD"]["secretKeyRef"]["name"] == "sidecar-test"
    with_certificates = helm.render(APPLICATION, STRIMZI)
    read = secrets(with_certificates.one("Pod", "-round-trip")["spec"]) - {"my-cluster-cluster-ca-cert"}
    assert read == {"retry-sidecar-test"} <= {each["metadata"]["name"] for each in with_certificates.all("KafkaUser")}


def test_a_prefix_of_origins_is_one_rule(helm: Helm) -> None:
    given = rules(helm.render(APPLICATION, STRIMZI).one("KafkaUser", "retry-sidecar"))
    assert ("topic", "payments-", "prefix", "Write") in given
    everything = helm.render(APPLICATION, DEFAULT, values=[*SCRAM, "config.origin_topics=*"])
    assert ("topic", "*", "literal", "Write") in rules(everything.one("KafkaUser", "sidecar"))


@pytest.mark.skipif(
    not any(each.name == "DLQ_TOPIC" for each in per_policy()), reason="policies have no DLQ of their own"
)
def test_the_dlqs_of_policies_are_created_and_written_too(helm: Helm) -> None:
    values = ["config.policies.slow.dlq_topic=slow-dlq", "config.origin_policies.orders.dlq_topic=dlq"]
    rendered = helm.render(APPLICATION, DEFAULT, values=[*SCRAM, *values])
    assert {"dlq", "slow-dlq"} <= topics_of(rendered).keys()
    assert ("topic", "slow-dlq", "literal", "Write") in rules(rendered.one("KafkaUser", "sidecar"))


def test_topics_without_users_are_strimzis_too(helm: Helm) -> None:
    values = ["topics.manage=strimzi", "topics.strimzi.cluster=c", "topics.strimzi.users=false"]
    rendered = helm.render(APPLICATION, DEFAULT, values=values)
    assert len(rendered.all("KafkaTopic")) == 5
    assert rendered.all("KafkaUser") == []


@pytest.mark.parametrize(("case", "origins"), [(DEFAULT, ["orders", "payments", "checks"]), (JOB, None)])
def test_helm_test_sends_a_message_that_the_sidecar_may_deliver(
    helm: Helm, case: Path, origins: list[str] | None
) -> None:
    rendered = helm.render(APPLICATION, case, values=["test.topic=checks", "test.timeoutSeconds=90"])
    pod, settings = rendered.one("Pod", "-round-trip"), rendered.one("ConfigMap", "-round-trip")
    assert hooks(pod) == hooks(settings) == {"test"}
    (container,) = pod["spec"]["containers"]
    assert parse(container["args"]) == "round-trip"
    assert {"--origin=checks", "--timeout=90"} <= set(container["args"])
    allowed = rendered.config()["origin_topics"]
    assert allowed == (origins or "orders,payments,checks")
    assert yaml.safe_load(settings["data"]["config.yaml"]) == rendered.config()
    if case is JOB:
        assert secrets(pod["spec"]) == {"kafka-ca", "tester"}
        assert "--origin=checks" in rendered.one("Job")["spec"]["template"]["spec"]["containers"][0]["args"]


LOGIN = ["kafka.sasl.mechanism=PLAIN", "kafka.sasl.username=u", "kafka.sasl.existingSecret=s"]
STRIMZI_TOPICS = ["topics.manage=strimzi", "topics.strimzi.cluster=c"]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (["topics.manage=job", *LOGIN], "topics.job.kafka.sasl.existingSecret is not set, but topics.manage is job"),
        (
            ["topics.manage=job", "kafka.tls.enabled=true", "kafka.tls.client.existingSecret=s"],
            "topics.job.kafka.tls.client.existingSecret is not set, but topics.manage is job",
        ),
        (
            ["topics.manage=job", "topics.job.kafka.sasl.existingSecret=s"],
            "topics.job.kafka.sasl.existingSecret is set, but kafka.sasl.mechanism is not",
        ),
        (
            ["topics.manage=job", "topics.job.kafka.tls.client.existingSecret=s"],
            "topics.job.kafka.tls.client.existingSecret is set, but kafka.tls.enabled is false",
        ),
        (["topics.manage=job", "config.create_topics=true"], "config.create_topics is true, but topics.manage is job"),
        (["topics.manage=strimzi"], "    topics.strimzi.cluster: my-cluster\n"),
        (STRIMZI_TOPICS, "topics.strimzi.users is true, but kafka has no login"),
        ([*STRIMZI_TOPICS, *LOGIN], "kafka.sasl.mechanism is PLAIN, but topics.strimzi.users is true"),
        ([*SCRAM, "kafka.sasl.username=other"], "so they must be equal"),
        ([*SCRAM, "kafka.sasl.usernameKey=user"], "Strimzi's secret has no user name"),
        (
            [*SCRAM, "config.origin_topics={orders-?}"],
            "config.origin_topics has orders-?, which no ACL of Kafka can say",
        ),
        (["test.kafka.sasl.existingSecret=s", "test.topic=t"], "test.kafka.sasl.existingSecret is set, but"),
        (["test.kafka.tls.client.existingSecret=s", "test.topic=t"], "but kafka.tls.enabled is false"),
        (["ingress.enabled=true"], "    ingress.hosts: [retries.example.com]\n"),
        (["httpRoute.enabled=true"], "    httpRoute.parentRefs: [{name: public, namespace: gateways}]\n"),
    ],
    ids=lambda each: each[-1].partition("=")[0] if isinstance(each, list) else "",
)
def test_what_cannot_be_is_refused_with_what_to_set(helm: Helm, values: list[str], said: str) -> None:
    with pytest.raises(RenderFailed) as failure:
        helm.render(APPLICATION, DEFAULT, values=values)
    assert said in str(failure.value)


def test_the_notes_say_the_way_that_fits(helm: Helm, tmp_path: Path) -> None:
    said = {
        case.stem: helm.notes(APPLICATION, case, folder=tmp_path / case.stem)
        for case in (DEFAULT, JOB, STRIMZI, next(path for path in CASES if path.stem == "everything-values"))
    }
    assert "The Job rel-retry-sidecar-topics has created the topics" in said["job-values"]
    assert "get kafkatopics,kafkausers" in said["strimzi-topics-values"]
    assert "creates missing topics itself (config.create_topics)" in said["everything-values"]
    default = said["default-values"]
    for way in ("set topics.manage to job", "set topics.manage to strimzi", "Only if the login of the pods may"):
        assert way in default
    commands = [line.strip() for line in default.splitlines() if line.strip().startswith("retry-sidecar topics")]
    assert [parse(command.split()[1:]) for command in commands] == ["topics create", "topics create"]
    for (stem, text), word in product(said.items(), ["Only if", "Choose one way"]):
        assert (word in text) == (stem == "default-values")
    assert "Set test.topic" in default
    assert "reachable from outside" in said["job-values"]


def backends(rendered: Rendered) -> list[tuple[str, Any]]:
    """Return name and port of the services that routes lead to."""
    ingress = [
        (path["backend"]["service"]["name"], path["backend"]["service"]["port"]["name"])
        for each in rendered.all("Ingress")
        for rule in each["spec"]["rules"]
        for path in rule["http"]["paths"]
    ]
    route = [
        (each["name"], each["port"])
        for manifest in rendered.all("HTTPRoute")
        for rule in manifest["spec"]["rules"]
        for each in rule["backendRefs"]
    ]
    return ingress + route


@pytest.mark.parametrize(("case", "port"), [(JOB, "name"), (STRIMZI, "port")], ids=["ingress", "route"])
def test_what_comes_from_outside_gets_to_the_service(helm: Helm, case: Path, port: str) -> None:
    rendered = helm.render(APPLICATION, case)
    (service,) = [each for each in rendered.all("Service") if "clusterIP" not in each["spec"]]
    assert backends(rendered) == [(service["metadata"]["name"], service["spec"]["ports"][0][port])]


def test_a_registry_for_all_charts_comes_first(helm: Helm) -> None:
    rendered = helm.render(APPLICATION, JOB)
    images = {pod["containers"][0]["image"] for pod in rendered.pods()}
    assert {image.rpartition(":")[0] for image in images} == {"mirror.example.com/kafka/shop/retry-sidecar"}
    own = helm.render(APPLICATION, JOB, values=["global.imageRegistry="])
    assert own.sidecar["image"].startswith("registry.example.com/shop/retry-sidecar:")
    assert helm.render(APPLICATION, DEFAULT).sidecar["image"].startswith("retry-sidecar:")


def test_all_objects_are_in_the_namespace_that_is_given(helm: Helm) -> None:
    monitoring = next(path for path in CASES if path.stem == "monitoring-values")
    for case in (JOB, STRIMZI, monitoring):
        rendered = helm.render(APPLICATION, case, values=["namespaceOverride=elsewhere", "topics.strimzi.namespace="])
        assert {each["metadata"]["namespace"] for each in rendered.manifests} == {"elsewhere"}


def test_the_service_has_its_labels(helm: Helm) -> None:
    rendered = helm.render(APPLICATION, JOB)
    assert rendered.one("Service", "retry-sidecar")["metadata"]["labels"]["team"] == "shop"
