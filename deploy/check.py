"""What deploy/check looks for in the files: required fields, and names of settings that exist.

Only python3's own modules, and yaml if it is installed. Run by deploy/check, in deploy/.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import yaml
except ImportError:
    yaml = None

problems = []


def check(file, holds, message):
    if not holds:
        problems.append(f"{file}: {message}")


def text(file):
    return Path(file).read_text(encoding="utf-8")


def seconds(value):
    """A duration such as 30s or 1m30s."""
    units = {"h": 3600, "m": 60, "s": 1}
    return sum(int(n) * units[unit] for n, unit in re.findall(r"(\d+)([hms])", str(value)))


SETTINGS = re.findall(r"^#([a-z][a-z-]*) = ", text("mtimer.toml"), re.M)
VARIABLES = {"MTIMER_" + name.upper().replace("-", "_") for name in SETTINGS}
# What a stop takes at most: handlers (the drain timeout), and besides handing over (10 s), giving
# up (5 s), closing (4 s), and a second.
STOP_BESIDES = 20
STOP = STOP_BESIDES + seconds(re.search(r'^#drain-timeout = "(.*)"', text("mtimer.toml"), re.M)[1])


def variables(file, names):
    for name in names:
        known = VARIABLES | {"MTIMER_BROKER", "MTIMER_CONFIG", "MTIMER_TOKEN", "MTIMER_TOKEN_FILE"}
        check(file, not name.startswith("MTIMER_") or name in known, f"{name} is not a setting of the broker")


def container(file="container/Containerfile"):
    lines = re.sub(r"\\\n", " ", text(file)).splitlines()
    steps = [line.split(None, 1) for line in lines if line.strip() and not line.startswith("#")]
    known = {"ARG", "FROM", "WORKDIR", "COPY", "RUN", "USER", "VOLUME", "ENV", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK",
             "ENTRYPOINT", "CMD"}
    for step in steps:
        check(file, step[0] in known and len(step) == 2, f"{step} is not an instruction that is used here")
    of = {}
    for name, *rest in steps:
        of.setdefault(name, []).append(" ".join(rest))
    stages = [re.search(r"\bAS (\S+)$", line) for line in of.get("FROM", [])]
    named = {match[1] for match in stages if match}
    check(file, len(stages) == 2, "there are two stages: build, and what runs")
    for stage in re.findall(r"--from=(\S+)", text(file)):
        check(file, stage in named, f"there is no stage {stage}")
    check(file, of.get("USER", ["root"])[-1].split(":")[0] not in ("root", "0"), "it must not run as root")
    check(file, of.get("STOPSIGNAL") == ["SIGTERM"], "the broker is stopped with SIGTERM")
    check(file, any('"mtimer", "ping", "--broker"' in line for line in of.get("HEALTHCHECK", [])),
          "the health check asks with mtimer ping: nothing that restarts what is not ready")
    check(file, of.get("ENTRYPOINT") == ['["mtimer"]'], "the program is mtimer")
    variables(file, [line.split("=")[0] for line in of.get("ENV", [])])
    # What the steps in README.md make must come into no image and no commit.
    for ignored, pattern in (("container/Containerfile.dockerignore", "**/{}"), ("../.gitignore", "{}")):
        for secret in ("*.key", "*-token", "tokens.toml", "*.pem", "tls.crt"):
            check(ignored, pattern.format(secret) in text(ignored).splitlines(), f"{pattern.format(secret)} is not in it")


def local(file="local/up"):
    drain = seconds(re.search(r"--drain-timeout (\S+)", text(file))[1])
    wait = int(re.search(r"end brokers (\d+)", text(file))[1])
    check(file, wait >= drain + STOP_BESIDES, f"the brokers must have {drain + STOP_BESIDES} s to stop")


def systemd(file="systemd/mtimer.service"):
    pairs = re.findall(r"^([A-Za-z]+)=(.*)$", text(file), re.M)
    service = dict(pairs)
    wanted = {"DynamicUser": "yes", "NoNewPrivileges": "yes", "ProtectSystem": "strict", "KillSignal": "SIGTERM",
              "Restart": "on-failure", "RestartPreventExitStatus": "2 4 11 12",
              # Tokens and certificates are read again without a restart.
              "ExecReload": "/bin/kill -HUP $MAINPID", "SupplementaryGroups": "mtimer-files"}
    for name, value in wanted.items():
        check(file, service.get(name) == value, f"{name} is {service.get(name)}, wanted is {value}")
    copied = [value for name, value in pairs if name == "LoadCredential"]
    check(file, copied == ["mtimer.toml:/etc/mtimer/mtimer.toml"], "what LoadCredential copies is never read again")
    check("README.md", "groupadd --system mtimer-files" in text("README.md"), "it does not say how to make the group")
    check(file, int(service.get("TimeoutStopSec", 0)) >= STOP, f"TimeoutStopSec must be {STOP} s: drain-timeout + 20 s")
    check(file, int(service.get("LimitNOFILE", 0)) >= 20_000, "LimitNOFILE is too low for 10,000 clients")


def compose(file="compose/compose.yaml"):
    whole = yaml.safe_load(text(file))
    services = whole["services"]
    addresses = set()
    for name, service in services.items():
        check(file, "image" in service, f"{name} has no image")
        for other in service.get("depends_on", {}):
            check(file, other in services, f"{name} depends on {other}, which is not there")
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                check(file, Path("compose", source).exists(), f"{name}: there is no {source}")
            else:
                check(file, source in whole["volumes"], f"{name}: the volume {volume} is not declared")
        for network, how in service["networks"].items():
            check(file, network in whole["networks"], f"{name}: the network {network} is not declared")
            address = how.get("ipv4_address")
            check(file, address is None or address not in addresses, f"{name}: {address} is there twice")
            addresses.add(address)
        variables(file, service.get("environment", {}))
    redis = [name for name in services if re.fullmatch(r"redis-\d", name)]
    brokers = [name for name in services if re.fullmatch(r"broker-\d", name)]
    check(file, len(redis) == 6 and len(brokers) == 3, "there are six Redis nodes and three brokers")
    for name in brokers:
        service = services[name]
        own = service["networks"]["mtimer"]["ipv4_address"]
        check(file, service["environment"]["MTIMER_ADVERTISE"] == f"{own}:7400", f"{name} advertises another address")
        for url in service["environment"]["MTIMER_REDIS"].split(","):
            check(file, url.removeprefix("redis://").split(":")[0] in addresses, f"{name}: {url} is nobody's")
        check(file, seconds(service["stop_grace_period"]) >= STOP, f"{name} must have {STOP} s to stop: drain-timeout + 20 s")
        encrypted_and_authenticated(f"{file}: {name}", service["environment"])
        number = name.removeprefix("broker-")
        check(file, f"tls-{number}:/etc/mtimer/tls:ro" in service["volumes"], f"{name} has another broker's certificate")
        check(file, own == f"172.31.74.2{number}", f"{name}: the certificate is made out to 172.31.74.2{number}")
        for once in ("tokens", "certificates"):
            check(file, once in service["depends_on"], f"{name} must start after {once}")
    scripts = {name: service["command"][0].replace("$$", "$") for name, service in services.items()
               if service.get("entrypoint", [""])[0] == "/bin/sh"}
    for name, script in scripts.items():
        checked = subprocess.run(["sh", "-n"], input=script, text=True, capture_output=True)
        check(file, checked.returncode == 0, f"{name}: {checked.stderr}")
    mounted = [volume for volume in services["prometheus"]["volumes"] if not volume.startswith(".")]
    check(file, mounted == ["prometheus-token:/etc/mtimer/token:ro", "ca:/etc/mtimer/ca:ro"],
          f"prometheus must have its own token and the authority, and nothing else: it has {mounted}")
    credentials = yaml.safe_load(text("prometheus/prometheus.yml"))["scrape_configs"][0]["authorization"]["credentials_file"]
    check("prometheus/prometheus.yml", credentials == "/etc/mtimer/token/prometheus-token", f"there is no {credentials}")
    scraped = yaml.safe_load(text("prometheus/prometheus.yml"))["scrape_configs"][0]
    check(file, scraped["scheme"] == "https", "the brokers are scraped with TLS")
    targets = scraped["static_configs"][0]["targets"]
    expected = [services[name]["networks"]["mtimer"]["ipv4_address"] + ":7480" for name in brokers]
    check("prometheus/prometheus.yml", targets == expected, f"it scrapes {targets}, brokers serve HTTP at {expected}")
    made = set(re.findall(r"^make (\S+)", scripts["tokens"], re.M))
    for used in re.findall(r"/([a-z]+)-token\b", text(file) + text("prometheus/prometheus.yml")):
        check(file, used in made, f"the service tokens makes no {used}-token")
    certificates(file, scripts["certificates"], len(brokers))


def encrypted_and_authenticated(file, env):
    """A broker beyond this machine has TLS and tokens, and no way around them."""
    for name in ("TLS_CERT", "TLS_KEY", "TLS_CA", "TOKENS", "PEER_TOKEN_FILE"):
        check(file, "MTIMER_" + name in env, f"MTIMER_{name} is missing")
    check(file, "MTIMER_INSECURE" not in env, "it must do without MTIMER_INSECURE")


def certificates(file, script, brokers):
    """Runs what makes the certificates, in a folder of its own; twice, since it must change nothing then."""
    if not shutil.which("openssl"):
        print("not checked: the certificates of compose (openssl is not installed)")
        return
    with tempfile.TemporaryDirectory() as folder:
        volumes = ["authority", "ca"] + [f"tls-{n + 1}" for n in range(brokers)]
        for volume in volumes:
            Path(folder, volume).mkdir()
        here = re.sub(r"(?<=[\s\"])/(authority|ca|tls-)", rf"{folder}/\1", script)
        # Only root can do that.
        here = re.sub(r"^ *chown .*$|-o 10001 -g 10001", "", here, flags=re.M)
        of = lambda n: Path(folder, f"tls-{n}", "cert.pem")
        before = None
        for _ in range(2):
            ran = subprocess.run(["/bin/sh", "-eu", "-c", here], text=True, capture_output=True)
            check(file, ran.returncode == 0, f"certificates: {ran.stderr}")
            if ran.returncode != 0:
                return
            made = [of(n + 1).read_bytes() for n in range(brokers)]
            check(file, before in (None, made), "certificates: they are made anew at every start")
            before = made
        for n in range(1, brokers + 1):
            for ask in (["verify", "-CAfile", f"{folder}/ca/ca.pem"], ["x509", "-noout", "-checkip", f"172.31.74.2{n}", "-in"],
                        ["x509", "-noout", "-checkip", "127.0.0.1", "-in"]):
                said = subprocess.run(["openssl", *ask, str(of(n))], text=True, capture_output=True)
                good = said.returncode == 0 and "does NOT match" not in said.stdout
                check(file, good, f"certificates: openssl {ask[0]}: {said.stdout}{said.stderr}")
            mode = Path(folder, f"tls-{n}", "key.pem").stat().st_mode & 0o777
            check(file, mode == 0o600, f"certificates: the key of broker {n} has mode {mode:o}")


def kubernetes(folder="kubernetes"):
    listed = yaml.safe_load(text(f"{folder}/kustomization.yaml"))["resources"]
    of = {}
    for path in sorted(Path(folder).glob("*.yaml")):
        for thing in yaml.safe_load_all(text(path)):
            check(path, "apiVersion" in thing and "kind" in thing, "apiVersion or kind is missing")
            if thing["kind"] == "Kustomization":
                continue
            check(path, thing["metadata"].get("name"), "it has no name")
            check(path, path.name in listed or thing["kind"] == "Secret", "kustomization.yaml does not list it")
            of[thing["kind"]] = thing
    for name in listed:
        check(folder, Path(folder, name).is_file(), f"kustomization.yaml lists {name}, which is not there")
    brokers, names = of["StatefulSet"]["spec"], of["Service"]
    pod = brokers["template"]["spec"]
    [container] = pod["containers"]
    labels = brokers["template"]["metadata"]["labels"]
    env = {var["name"]: var for var in container["env"]}
    file = f"{folder}/statefulset.yaml"
    for kind, selector in (("StatefulSet", brokers["selector"]["matchLabels"]), ("Service", names["spec"]["selector"]),
                           ("PodDisruptionBudget", of["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"])):
        check(folder, selector.items() <= labels.items(), f"{kind}: the selector does not match the pods")
    policy = of["NetworkPolicy"]["spec"]
    check(folder, policy["podSelector"]["matchLabels"].items() <= labels.items(), "NetworkPolicy: it is about no broker")
    check(folder, policy["policyTypes"] == ["Ingress"] and all(rule.get("from") for rule in policy["ingress"]),
          "NetworkPolicy: each port must say who may reach it")
    reached = {port["port"] for rule in policy["ingress"] for port in rule["ports"]}
    check(folder, reached == {port["name"] for port in container["ports"]}, f"NetworkPolicy: it is about the ports {reached}")
    check(file, brokers["replicas"] == 3, "there are three brokers")
    check(file, brokers["serviceName"] == names["metadata"]["name"], "serviceName is not the Service's name")
    check(folder, names["spec"]["clusterIP"] == "None", "the Service must be headless")
    check(folder, of["PodDisruptionBudget"]["spec"]["maxUnavailable"] == 1, "one broker at a time")
    check(file, pod.get("enableServiceLinks") is False, "enableServiceLinks must be false: MTIMER_PORT is no setting")
    check(file, pod["terminationGracePeriodSeconds"] >= STOP, f"the pod must have {STOP} s to stop: drain-timeout + 20 s")
    check(file, pod["securityContext"]["runAsNonRoot"] is True, "it must not run as root")
    advertised = env["MTIMER_ADVERTISE"]["value"]
    check(file, advertised.startswith(f"$(POD_NAME).{brokers['serviceName']}."), "it must advertise the pod's own name")
    order = list(env)
    for name in re.findall(r"\$\((\w+)\)", advertised):
        check(file, name in env and order.index(name) < order.index("MTIMER_ADVERTISE"), f"{name} must come first")
    secret = env["MTIMER_REDIS"]["valueFrom"]["secretKeyRef"]
    check(file, secret["name"] == of["Secret"]["metadata"]["name"] and secret["key"] in of["Secret"]["stringData"],
          "there is no such secret")
    encrypted_and_authenticated(file, env)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    check(file, env["MTIMER_HTTP"]["value"] == f"0.0.0.0:{ports['metrics']}", "the port metrics is not that of MTIMER_HTTP")
    check(file, env["MTIMER_LISTEN"]["value"] == f"0.0.0.0:{ports['mtimer']}", "the port mtimer is not that of MTIMER_LISTEN")
    for port in names["spec"]["ports"]:
        check(folder, port["targetPort"] in ports, f"the Service's port {port['name']} leads to no port of the pods")
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        get = container[probe]["httpGet"]
        path = "/readyz" if probe == "readinessProbe" else "/healthz"
        wanted = {"path": path, "port": "metrics", "scheme": "HTTPS"}
        check(file, get == wanted, f"{probe} asks {get}, wanted is {wanted}")
    mounted = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    for name, var in env.items():
        folder_of = str(Path(var.get("value", "")).parent)
        check(file, not folder_of.startswith("/etc/") or folder_of in mounted, f"{name}: nothing is mounted there")
    for volume in pod["volumes"]:
        check(file, volume["name"] in mounted.values(), f"the volume {volume['name']} is not mounted")
        secret = volume["secret"]["secretName"]
        check("README.md", f"create secret generic {secret} " in text("README.md"), f"it does not say how to make {secret}")
        check(file, volume["secret"]["defaultMode"] == 0o440, f"{secret}: others must not read it")
    variables(file, env)


def metrics(rules="prometheus/alerts.yml", tests="prometheus/alerts_test.yml", dashboard="grafana/mtimer.json"):
    """Rules and dashboard use documented metrics only; the dashboard shows what rules use; every rule is tested."""
    documented = set(re.findall(r"^\| `((?:mtimer|process)_[a-z_]+)` \|", text("../docs/metrics.md"), re.M))
    check("../docs/metrics.md", len(documented) > 20, "its table of metrics is not found: lines start with '| `mtimer_'")
    panels = [panel for panel in json.loads(text(dashboard))["panels"] if panel["type"] != "row"]
    shown = "\n".join(target["expr"] for panel in panels for target in panel["targets"])
    check(dashboard, len(panels) > 20, "its panels are not found")
    for file, used in ((rules, text(rules)), (tests, text(tests)), (dashboard, shown)):
        names = set(re.findall(r"\b((?:mtimer|process)_[a-z_]+)\b", used))
        check(file, names, "it uses no metric")
        for name in sorted(names):
            known = name in documented or re.sub(r"_(bucket|sum|count)$", "", name) in documented
            check(file, known, f"{name} is not in docs/metrics.md")
    # Texts name metrics to look at, too.
    for name in sorted(set(re.findall(r"\b(?:(?:mtimer|process)_[a-z_]+|up)\b", text(rules)))):
        check(dashboard, re.search(rf"\b{name}(_bucket)?\b", shown), f"no panel shows {name}, which {rules} uses")
    for alert in re.findall(r"- alert: (\w+)", text(rules)):
        quiet = f"alertname: {alert} " in text(tests)
        check(tests, quiet and f'alertname="{alert}"' in text(tests), f"{alert} is not tested both ways")


def main():
    check("mtimer.toml", len(SETTINGS) > 20, "its settings are not found: lines start with '#name ='")
    container()
    local()
    systemd()
    metrics()
    if yaml:
        compose()
        kubernetes()
    else:
        print("not checked: compose and kubernetes (python3 has no yaml module)")
    for problem in problems:
        print("deploy/check:", problem, file=sys.stderr)
    return 1 if problems else 0


sys.exit(main())
