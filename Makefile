# Targets create their environment in .venv. You only need Python 3.11 or newer with venv.
# PYTHON selects the interpreter: make test PYTHON=python3.13

PYTHON = python3
VENV = .venv
BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip --disable-pip-version-check --quiet
RUN_STAMP = $(VENV)/.run-installed
TEST_STAMP = $(VENV)/.test-installed
SPARK_STAMP = $(VENV)/.spark-installed
# The S3-compatible store of the tests: its libraries and those of the project exclude each other.
S3_VENV = $(VENV)-s3
S3_STAMP = $(S3_VENV)/.installed
UV_VENV = $(VENV)-uv
WHEELS_VENV = $(VENV)-wheels
CIBUILDWHEEL_VERSION = 4.3.5
AUDIT_VENV = $(VENV)-audit
PIP_AUDIT_VERSION = 2.10.1
SBOM_VENV = $(VENV)-sbom
LOCK =
# What `make sign` signs, and where `make push-charts` pushes.
IMAGE =
REGISTRY =
# Compiled where there is a C compiler, when the package is installed.
HOT = hatch_build.py $(wildcard sidecar/engine/hot/*.pyx sidecar/engine/hot/*.pxd)
# Tests with a broker mostly wait for it, so there are more workers than cores. They share one broker.
WORKERS = 4
PYTEST = $(BIN)/python -m pytest -q --durations=30 --dist loadscope --no-loadscope-reorder
# Else every worker and every process of a test compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE
MINUTES = 60
WORLDS = 1000
SAMPLE = 150
SEED = 1
# A list that `make mutate` wrote: build/mutants.json of an earlier tree.
BEFORE =
FIGURES = store fire both lateness restart
REF =
FIRST = 0
COMPILE = $(UV_VENV)/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --no-annotate --no-header $(LOCK)

# Tools that tests/deploy needs besides Python. Without them, these tests are skipped with a message.
TOOLS = $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/retry-sidecar/bin
HELM_VERSION = v3.22.0
HELM = $(TOOLS)/helm-$(HELM_VERSION)/helm
# As in Helm's Makefile. Without these flags, Helm renders charts for Kubernetes 1.20 by default.
HELM_FLAGS = -s -w $(foreach package,chartutil lint/rules,$(foreach part,Major=1 Minor=37,-X helm.sh/helm/v3/pkg/$(package).k8sVersion$(part)))
KUSTOMIZE_VERSION = v5.8.2
KUSTOMIZE = $(TOOLS)/kustomize-$(KUSTOMIZE_VERSION)/kustomize
PROMTOOL = $(TOOLS)/promtool
ACTIONLINT_VERSION = v1.7.12
ACTIONLINT = $(TOOLS)/actionlint-$(ACTIONLINT_VERSION)/actionlint
TOXIPROXY_VERSION = v2.12.0
OTEL_VERSION = v0.162.0
OTELCOL = $(TOOLS)/otelcol-$(OTEL_VERSION)/otelcol
TOXIPROXY = $(TOOLS)/toxiproxy-$(TOXIPROXY_VERSION)/toxiproxy

.DEFAULT_GOAL = help
.PHONY: help demo demo-spark test test-fast test-all test-rough test-pure mutate sanitize test-spark test-spark-cluster test-cluster test-logins test-spring-kafka test-otel test-schema test-clients test-image chaos soak-spark check simulate bench bench-operating bench-attacks bench-large bench-compare bench-spark docs push-docs dist wheels charts check-release push-charts sign audit sbom lock lint-workflows helm kustomize promtool toxiproxy collector clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(RUN_STAMP) ## Run Kafka, the sidecar and a failing application on this machine, then check every message
	$(BIN)/retry-sidecar demo

demo-spark: $(SPARK_STAMP) ## Run the demo on Apache Spark; needs a JDK 17 or 21
	$(BIN)/retry-sidecar demo --spark

test: $(TEST_STAMP) ## Run the tests that every change passes, with a real Kafka: about ten minutes
	SIDECAR_REQUIRE_BROKER=1 $(PYTEST) -n $(WORKERS) --ring test

test-fast: $(TEST_STAMP) ## Run the tests that need nothing outside of Python, for the edit loop: about a minute
	$(PYTEST) -n auto --ring fast

test-all: $(SPARK_STAMP) $(S3_STAMP) test-pure ## Run every test, which takes an hour; what a missing program skips says so
	SIDECAR_REQUIRE_BROKER=1 $(PYTEST) -n $(WORKERS)

test-rough: $(TEST_STAMP) ## Run the same on a machine that stands still 100 times for up to 4 s, beside busy loops
	SIDECAR_REQUIRE_BROKER=1 $(BIN)/python -m tests.rough -- $(PYTEST) --timeout 1200 -n $(WORKERS) --ring test

test-pure: $(TEST_STAMP) ## The quick tests of what is compiled, on Python alone
	SIDECAR_PURE_PYTHON=1 $(PYTEST) -n auto tests/unit/engine tests/property tests/simulation

mutate: $(TEST_STAMP) ## Make SAMPLE=150 small mistakes in the core and list those that no quick test notices
	$(PIP) install --require-hashes -r requirements/mutate.lock
	$(PYTEST) -n auto tests/simulation/test_mistakes.py tests/simulation/test_worlds.py
	@mkdir -p build
	$(BIN)/python -m tests.mutants --sample $(SAMPLE) --seed $(SEED) --out build/mutants.json $(if $(BEFORE),--before $(BEFORE))

sanitize: $(TEST_STAMP) ## The comparison of compiled code and Python under address and undefined-behaviour sanitizers
	SIDECAR_HOT=require SIDECAR_HOT_FLAGS="-O1 -g -fsanitize=address,undefined -fno-omit-frame-pointer" \
		$(PIP) install --no-deps --no-build-isolation --editable .
	LD_PRELOAD="$$(cc -print-file-name=libasan.so) $$(cc -print-file-name=libubsan.so)" ASAN_OPTIONS=detect_leaks=0 \
		PYTHONMALLOC=malloc $(BIN)/python -m pytest -q --timeout=0 tests/property/test_hot.py tests/property/test_hot_redrive.py; \
		status=$$?; $(PIP) install --no-deps --no-build-isolation --editable . && exit $$status

test-spark: $(SPARK_STAMP) $(S3_STAMP) ## Run all tests of the Spark engine, which takes minutes; needs a JDK 17 or 21
	SIDECAR_REQUIRE_BROKER=1 $(BIN)/python -m pytest -q tests/spark --ignore tests/spark/cluster

test-spark-cluster: $(SPARK_STAMP) ## Run the Spark engine on a standalone cluster whose parts fail; needs a JDK 17 or 21
	SIDECAR_REQUIRE_BROKER=1 $(BIN)/python -m pytest -q tests/spark/cluster

test-cluster: $(TEST_STAMP) ## Run all tests on a Kafka of three nodes that fail, which takes minutes
	@if command -v go >/dev/null; then $(MAKE) --no-print-directory toxiproxy; else echo "no Go: the network tests are skipped"; fi
	SIDECAR_REQUIRE_BROKER=1 $(BIN)/python -m pytest -q tests/integration/cluster

test-logins: $(TEST_STAMP) ## Log in to a broker with OAUTHBEARER, with a token server of the tests, which takes a minute
	SIDECAR_REQUIRE_BROKER=1 $(BIN)/python -m pytest -q tests/integration/operations/test_oauth_login.py

test-spring-kafka: $(TEST_STAMP) ## Run the tests with records of the real Spring Kafka; needs Maven and a JDK 17
	SIDECAR_REQUIRE_BROKER=1 $(BIN)/python -m pytest -q tests/integration/origins/test_spring_kafka.py

test-otel: $(TEST_STAMP) $(OTELCOL) ## Follow a message through OpenTelemetry's real collector; needs Go
	$(PIP) install --require-hashes -r requirements/image.lock
	SIDECAR_REQUIRE_BROKER=1 $(BIN)/python -m pytest -q tests/integration/operations/test_otel.py

test-schema: $(TEST_STAMP) ## Let Schemathesis make up requests to a running sidecar, which takes two minutes
	SIDECAR_REQUIRE_BROKER=1 $(BIN)/python -m pytest -q tests/integration/operations/test_schemathesis.py

test-clients: $(TEST_STAMP) ## Build and run the examples in every language on this machine, which takes minutes
	SIDECAR_REQUIRE_BROKER=1 $(BIN)/python -m pytest -q tests/integration/clients

test-image: $(TEST_STAMP) ## Carry out the Dockerfile's steps in a chroot, which takes minutes; needs root and debootstrap
	$(BIN)/python -m pytest -q tests/deploy/test_image_steps.py

chaos: $(TEST_STAMP) ## Let nodes and instances fail at random for MINUTES, then print one line of JSON
	$(BIN)/python -m tests.chaos --minutes $(MINUTES)

soak-spark: $(SPARK_STAMP) ## Run the Spark engine under a steady load for MINUTES; fails when open files, threads, memory or checkpoint files grow
	$(BIN)/python -m tests.soak --minutes $(MINUTES)

check: $(TEST_STAMP) ## Check style, types and layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy -p retry_sidecar -p sidecar -p tests -p bench -p deploy
	$(BIN)/mypy clients/python/tests
	$(BIN)/lint-imports

simulate: $(TEST_STAMP) ## WORLDS=10000 random worlds of the whole runtime on a simulated cluster, from seed FIRST
	$(BIN)/python -m tests.simulation.shell --worlds $(WORLDS) --first $(FIRST)

bench: $(TEST_STAMP) ## Measure the figures in docs/explanation/performance.md
	$(BIN)/python -m bench

bench-operating: $(TEST_STAMP) ## Measure operating: counts, requests at full load, pages, cancel
	$(BIN)/python -m bench counts asked listing cancel

bench-attacks: $(TEST_STAMP) ## Measure lateness while strangers attack the HTTP port
	$(BIN)/python -m bench attacks

bench-large: $(TEST_STAMP) ## Measure one instance with LARGE=10000000 pending messages; needs 30 GB of disk
	$(BIN)/python -m bench large --large $(or $(LARGE),10000000)

bench-compare: $(TEST_STAMP) ## Measure FIGURES of this tree and of the commit REF in alternation
	@test -n "$(REF)" || { echo "set REF to a commit: make bench-compare REF=HEAD~1"; exit 2; }
	$(BIN)/python -m bench $(FIGURES) --against "$(REF)"

bench-spark: $(SPARK_STAMP) ## Measure the Spark engine; needs a JDK 17 or 21
	$(BIN)/python -m bench spark shards

docs: $(TEST_STAMP) ## Build the documentation site in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

dist: $(TEST_STAMP) ## Build wheel and sdist in dist/ twice, compare them, and test the installed wheel
	$(BIN)/python -m tests.docs.distribution

wheels: ## Build this platform's wheels with the compiled hot path in dist/; needs Docker on Linux
	$(PYTHON) -m venv $(WHEELS_VENV)
	$(WHEELS_VENV)/bin/python -m pip --disable-pip-version-check --quiet install cibuildwheel==$(CIBUILDWHEEL_VERSION)
	$(WHEELS_VENV)/bin/python -m cibuildwheel --output-dir dist

charts: $(HELM) ## Check the charts and package them in build/charts
	$(HELM) lint --strict deploy/helm/retry-sidecar deploy/helm/retry-sidecar-lib
	rm -rf build/charts
	$(HELM) package --destination build/charts deploy/helm/retry-sidecar deploy/helm/retry-sidecar-lib

push-docs: export PATH := $(abspath $(BIN)):$(PATH)
push-docs: $(TEST_STAMP) ## Add the site of this version to the branch gh-pages, and push it
	NO_MKDOCS_2_WARNING=1 mike deploy --push --update-aliases \
		$$(python -c 'import importlib.metadata as m; print(m.version("retry-sidecar"))') latest
	mike set-default --push latest

check-release: ## Check that the tag and the repository are those that the metadata names
	$(PYTHON) -m tests.docs.release

push-charts: charts ## Push the packaged charts to REGISTRY=oci://...
	@test -n "$(REGISTRY)" || { echo "set REGISTRY: make push-charts REGISTRY=oci://registry.example.com/charts"; exit 2; }
	for chart in build/charts/*.tgz; do $(HELM) push "$$chart" "$(REGISTRY)" || exit; done

sign: ## Sign IMAGE=name@digest with the identity of this workflow or person; needs cosign
	@case "$(IMAGE)" in *@sha256:*) ;; *) echo "set IMAGE to a name with a digest: make sign IMAGE=registry.example.com/retry-sidecar@sha256:..."; exit 2;; esac
	cosign sign --yes --recursive "$(IMAGE)"

audit: ## Look for known vulnerabilities in the locked dependencies; needs the package index
	$(PYTHON) -m venv $(AUDIT_VENV)
	$(AUDIT_VENV)/bin/python -m pip --disable-pip-version-check --quiet install pip-audit==$(PIP_AUDIT_VERSION)
	for lock in run test image image-spark; do \
		$(AUDIT_VENV)/bin/pip-audit --strict --require-hashes --disable-pip --requirement requirements/$$lock.lock || exit; done

sbom: ## List the locked dependencies of sidecar and images as CycloneDX in build/sbom
	$(PYTHON) -m venv $(SBOM_VENV)
	$(SBOM_VENV)/bin/python -m pip --disable-pip-version-check --quiet install --require-hashes -r requirements/sbom.lock
	mkdir -p build/sbom
	for lock in run image image-spark; do $(SBOM_VENV)/bin/cyclonedx-py requirements --output-reproducible \
		--pyproject pyproject.toml --output-file build/sbom/$$lock.cdx.json requirements/$$lock.lock || exit; done

lock: $(TEST_STAMP) ## Update requirements/*.lock from pyproject.toml; LOCK=--upgrade takes the newest versions
	$(PYTHON) -m venv $(UV_VENV)
	$(UV_VENV)/bin/python -m pip --disable-pip-version-check --quiet install uv
	$(COMPILE) pyproject.toml requirements/build.in --extra demo --output-file requirements/run.lock
	$(COMPILE) pyproject.toml requirements/build.in --extra demo --group test --group lint --group docs \
		--constraint requirements/run.lock --output-file requirements/test.lock
	$(COMPILE) --group mutate --constraint requirements/test.lock --output-file requirements/mutate.lock
	$(COMPILE) pyproject.toml requirements/build.in --extra otel --constraint requirements/run.lock \
		--output-file requirements/image.lock
	$(COMPILE) pyproject.toml requirements/build.in --extra demo --extra spark --group test --constraint requirements/test.lock \
		--output-file requirements/spark.lock
	$(COMPILE) pyproject.toml requirements/build.in --extra otel --extra spark --constraint requirements/image.lock \
		--constraint requirements/spark.lock --output-file requirements/image-spark.lock
	$(COMPILE) requirements/spark-build.in --output-file requirements/spark-build.lock
	$(COMPILE) requirements/s3-store.in --output-file requirements/s3-store.lock
	$(COMPILE) --group sbom --output-file requirements/sbom.lock
	$(BIN)/python requirements/lock_jars.py
	rm -rf $(UV_VENV)

lint-workflows: $(ACTIONLINT) ## Check the syntax of the GitHub workflows; needs Go
	$(ACTIONLINT) -color .github/workflows/*.yml

helm: $(HELM) ## Build Helm for the chart tests; needs Go, takes minutes once

kustomize: $(KUSTOMIZE) ## Build Kustomize for the tests of deploy/kubernetes; needs Go, takes a minute once

promtool: $(PROMTOOL) ## Download promtool for the alert tests from Debian's package; installs nothing

toxiproxy: $(TOXIPROXY) ## Build Toxiproxy for the network tests; needs Go, takes a minute once

collector: $(OTELCOL) ## Build the OpenTelemetry collector for test-otel; needs Go, takes minutes once

clean: ## Remove the environment and the tools' caches
	rm -rf $(VENV) $(S3_VENV) $(UV_VENV) $(WHEELS_VENV) $(AUDIT_VENV) $(SBOM_VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
	rm -f sidecar/engine/hot/*.so
	find sidecar tests bench clients -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

$(HELM):
	rm -rf $(@D).building
	GOBIN=$(@D).building CGO_ENABLED=0 go install -trimpath -ldflags '$(HELM_FLAGS)' helm.sh/helm/v3/cmd/helm@$(HELM_VERSION)
	rm -rf $(@D) && mv $(@D).building $(@D)

$(ACTIONLINT):
	rm -rf $(@D).building
	GOBIN=$(@D).building CGO_ENABLED=0 go install -trimpath -ldflags '-s -w' github.com/rhysd/actionlint/cmd/actionlint@$(ACTIONLINT_VERSION)
	rm -rf $(@D) && mv $(@D).building $(@D)

$(KUSTOMIZE):
	rm -rf $(@D).building
	GOBIN=$(@D).building CGO_ENABLED=0 go install -trimpath -ldflags '-s -w' sigs.k8s.io/kustomize/kustomize/v5@$(KUSTOMIZE_VERSION)
	rm -rf $(@D) && mv $(@D).building $(@D)

$(TOXIPROXY):
	rm -rf $(@D).building
	GOBIN=$(@D).building CGO_ENABLED=0 go install -trimpath -ldflags '-s -w' github.com/Shopify/toxiproxy/v2/cmd/server@$(TOXIPROXY_VERSION)
	mv $(@D).building/server $(@D).building/toxiproxy && rm -rf $(@D) && mv $(@D).building $(@D)

$(OTELCOL): tests/integration/operations/collector.yaml
	rm -rf $(@D).building
	GOBIN=$(@D).building CGO_ENABLED=0 go install go.opentelemetry.io/collector/cmd/builder@$(OTEL_VERSION)
	cp $< $(@D).building/collector.yaml && cd $(@D).building && CGO_ENABLED=0 ./builder --config collector.yaml
	rm -rf $(@D) && mkdir -p $(@D) && mv $(@D).building/source/otelcol $@ && rm -rf $(@D).building

$(PROMTOOL):
	@command -v apt-get >/dev/null || { echo "promtool comes from Debian's package prometheus, and apt-get is missing: install promtool into the PATH"; exit 1; }
	rm -rf $@.fetched && mkdir -p $@.fetched
	cd $@.fetched && (apt-get download -qq prometheus || (apt-get update -qq && apt-get download -qq prometheus))
	cd $@.fetched && dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x ./usr/bin/promtool
	mv $@.fetched/usr/bin/promtool $@ && rm -rf $@.fetched

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is required; select it with make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

$(RUN_STAMP): requirements/run.lock pyproject.toml $(HOT) | $(BIN)/python
	$(PIP) install --require-hashes -r requirements/run.lock
	$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

$(TEST_STAMP): requirements/test.lock pyproject.toml $(HOT) | $(BIN)/python
	$(PIP) install --require-hashes -r requirements/test.lock
	$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@ $(RUN_STAMP)

$(SPARK_STAMP): requirements/spark.lock pyproject.toml | $(TEST_STAMP)
	$(PIP) install --require-hashes -r requirements/spark.lock
	@touch $@

$(S3_STAMP): requirements/s3-store.lock
	$(PYTHON) -m venv $(S3_VENV)
	$(S3_VENV)/bin/python -m pip --disable-pip-version-check --quiet install --require-hashes -r requirements/s3-store.lock
	@touch $@
