"""ssh: the pods of a job log in to each other without a password, with a key pair in the Secret `JOB-ssh`."""

import base64

from baton.errors import UnavailableError
from baton.job_plugins.plugin import SECRETS, Plugin, PluginObject, all_containers, hosts_of
from baton.job_plugins.pod_bodies import Body, add_mount, add_volume
from baton.model.volcano import Job, TaskSpec

_FILES = ("id_rsa", "id_rsa.pub", "authorized_keys", "config")
_DIRECTORY = ".ssh"
_MODE = 0o600
_KEY_BITS = 2048


class Ssh(Plugin):
    name = "ssh"
    arguments = {
        "ssh-key-file-path": "/root/.ssh",
        "ssh-private-key": "",
        "ssh-public-key": "",
        "ssh-port": 0,
    }

    def change_pod(self, job: Job, task: TaskSpec, index: int, pod: Body) -> None:
        secret = secret_name(job)
        items = [{"key": file, "path": f"{_DIRECTORY}/{file}"} for file in _FILES]
        add_volume(
            pod["spec"], {"name": secret, "secret": {"secretName": secret, "items": items, "defaultMode": _MODE}}
        )
        mount = {"name": secret, "mountPath": self.text("ssh-key-file-path"), "subPath": _DIRECTORY}
        add_mount(all_containers(pod), mount)

    def objects(self, job: Job) -> list[PluginObject]:
        return [PluginObject(SECRETS, secret_name(job), lambda: self._secret(job))]

    def _secret(self, job: Job) -> Body:
        private, public = self.text("ssh-private-key"), self.text("ssh-public-key")
        if not private:
            private, public = new_key_pair()
        contents = (private, public, public, self.config(job))
        data = {file: base64.b64encode(text.encode()).decode() for file, text in zip(_FILES, contents, strict=True)}
        return {"data": data}

    def config(self, job: Job) -> str:
        """The client configuration: every pod by its name, without questions about unknown hosts."""
        lines = ["StrictHostKeyChecking no", "UserKnownHostsFile /dev/null"]
        for task in job.spec.tasks:
            for address in hosts_of(job, task):
                lines += [f"Host {address.partition('.')[0]}", f"  HostName {address}"]
                if self.number("ssh-port"):
                    lines.append(f"  Port {self.number('ssh-port')}")
        return "\n".join(lines) + "\n"


def secret_name(job: Job) -> str:
    return f"{job.metadata.name}-ssh"


def new_key_pair() -> tuple[str, str]:
    """A private key and the line for authorized_keys."""
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import rsa
    except ModuleNotFoundError:
        raise UnavailableError(
            "the ssh plugin makes keys with the package cryptography, which is missing: pip install 'baton[certs]'"
        ) from None
    key = rsa.generate_private_key(public_exponent=65537, key_size=_KEY_BITS)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return private.decode(), public.decode() + "\n"
