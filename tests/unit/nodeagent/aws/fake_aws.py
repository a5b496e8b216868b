"""The metadata service, EC2 and the token service in one server on loopback, as far as they are asked."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

DESCRIBED = """<DescribeInstancesResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><reservationSet><item>
<instancesSet><item><instanceId>i-1</instanceId><networkInterfaceSet>
<item><networkInterfaceId>eni-b</networkInterfaceId><sourceDestCheck>true</sourceDestCheck>
<attachment><deviceIndex>1</deviceIndex></attachment></item>
<item><networkInterfaceId>eni-a</networkInterfaceId><sourceDestCheck>{check}</sourceDestCheck>
<attachment><deviceIndex>0</deviceIndex></attachment></item>
</networkInterfaceSet></item></instancesSet></item></reservationSet></DescribeInstancesResponse>"""
ERROR = "<Response><Errors><Error><Code>{}</Code><Message>{}</Message></Error></Errors></Response>"
ROLE = '{"AccessKeyId": "of-%s", "SecretAccessKey": "s", "Token": "t"}'
ASSUMED = """<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><Credentials>
<AccessKeyId>of-account</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken></Credentials>
</AssumeRoleWithWebIdentityResponse>"""


class FakeAws:
    """``errors``: (status, code) that EC2 answers with before it works. ``calls``: EC2's actions, with who signed."""

    def __init__(self) -> None:
        self.checked, self.first_version_only = True, False
        self.errors: list[tuple[int, str]] = []
        self.calls: list[tuple[str, str]] = []
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                self._say(405 if fake.first_version_only else 200, "the-token")

            def do_GET(self) -> None:
                if self.path == "/agent":
                    self._say(200 if self.headers["Authorization"] == "pass" else 403, ROLE % "container")
                elif self.headers["X-aws-ec2-metadata-token"] != "the-token":
                    self._say(401, "")
                else:
                    text = fake.metadata.get(self.path)
                    self._say(404 if text is None else 200, text or "")

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                form = {name: values[0] for name, values in parse_qs(body).items()}
                if self.path == "/sts":
                    good = form["WebIdentityToken"] == "a-token" and form["RoleArn"] == "arn:role"
                    self._say(200 if good else 403, ASSUMED if good else ERROR.format("AccessDenied", "no"))
                    return
                signer = self.headers["Authorization"].partition("Credential=")[2].partition("/")[0]
                fake.calls.append((form["Action"], signer))
                if fake.errors:
                    status, code = fake.errors.pop(0)
                    self._say(status, ERROR.format(code, "you are not authorized"))
                elif form["Action"] == "DescribeInstances":
                    self._say(200, DESCRIBED.format(check=str(fake.checked).lower()))
                elif form["NetworkInterfaceId"] == "eni-a":
                    fake.checked = form["SourceDestCheck.Value"] == "true"
                    self._say(200, "<ok/>")

            def _say(self, status: int, text: str) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, format: str, *arguments: object) -> None:
                """Not on standard error."""

        self.metadata = {
            "/latest/meta-data/placement/region": "eu-west-1",
            "/latest/dynamic/instance-identity/document": '{"instanceId": "i-1"}',
            "/latest/meta-data/iam/security-credentials/": "node-role\n",
            "/latest/meta-data/iam/security-credentials/node-role": ROLE % "role",
        }
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def environ(self) -> dict[str, str]:
        return {"AWS_EC2_METADATA_SERVICE_ENDPOINT": self.url, "AWS_ENDPOINT_URL_EC2": f"{self.url}/"}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
