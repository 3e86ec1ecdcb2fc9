"""Objects of an S3 store: a real server (moto), which checks signatures, and one of the test's own that misbehaves."""

import hashlib
import http.server
import json
import os
import pathlib
import re
import shutil
import socket
import struct
import subprocess
import threading
import time
import unittest
import urllib.request

import harness
from harness import DONE, FAILED, USAGE
import test_save
from test_load import safetensors

MIB = 1 << 20
VENV = pathlib.Path(os.environ.get("SIDESTEP_S3_VENV", harness.SOURCE_DIR / "build" / "s3-venv"))

# Makes a user whose requests the server checks from then on, and prints the user's keys.
PREPARE = """
import boto3, json, sys
at = dict(endpoint_url=sys.argv[1], region_name="eu-west-1", aws_access_key_id="x", aws_secret_access_key="x")
iam, s3 = boto3.client("iam", **at), boto3.client("s3", **at)
iam.create_user(UserName="u")
may = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
iam.put_user_policy(UserName="u", PolicyName="p", PolicyDocument=json.dumps(may))
s3.create_bucket(Bucket="models", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
for line in sys.stdin:
    key, path = line.rstrip("\\n").split("\\t")
    s3.upload_file(path, "models", key)
print(json.dumps(iam.create_access_key(UserName="u")["AccessKey"], default=str))
"""


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class S3Test(harness.CommandTest):
    def setUp(self):
        super().setUp()
        self.content = harness.bytes_that_differ(20 * MIB)
        self.tensors = [("w", "U8", [20 * MIB - 5], self.content[5:]), ("scale", "F64", [], struct.pack("<d", 0.5))]
        self.model = safetensors(self.tensors)
        self.write("here.safetensors", self.model)

    def env_of(self, endpoint, **more):
        env = {name: value for name, value in harness.environment().items() if not name.startswith("AWS_")}
        return {**env, "HOME": str(self.dir), "AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": "key",
                "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "eu-west-1", "no_proxy": "127.0.0.1", **more}


@unittest.skipUnless((VENV / "bin" / "moto_server").exists(),
                     f"no S3 server: `tools/setup.sh s3` installs moto into {VENV}")
class RealServer(S3Test):
    def setUp(self):
        super().setUp()
        port = free_port()
        self.endpoint = f"http://127.0.0.1:{port}"
        env = {**os.environ, "INITIAL_NO_AUTH_ACTION_COUNT": "1000000"}
        server = subprocess.Popen([VENV / "bin" / "moto_server", "-p", str(port)], env=env,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(server.wait)
        self.addCleanup(server.terminate)
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{self.endpoint}/moto-api/", timeout=5).close()
                break
            except OSError:
                time.sleep(0.1)
        index = {"weight_map": {"w": "odd name+1.safetensors", "scale": "b.safetensors"}}
        self.write("odd", safetensors(self.tensors[:1]))
        self.write("b", safetensors(self.tensors[1:]))
        self.write("index", json.dumps(index).encode())
        self.write("empty", b"")
        keys = {"one/m.safetensors": "here.safetensors", "two/odd name+1.safetensors": "odd", "two/b.safetensors": "b",
                "two/model.safetensors.index.json": "index", "three/a/b/deep.bin": "empty", "empty.bin": "empty",
                **{f"many/x-{i:04}.txt": "empty" for i in range(1100)}, "many/zz.safetensors": "b"}
        lines = "".join(f"{key}\t{self.dir / name}\n" for key, name in keys.items())
        made = subprocess.run([VENV / "bin" / "python3", "-c", PREPARE, self.endpoint], input=lines.encode(),
                              stdout=subprocess.PIPE, check=True)
        user = json.loads(made.stdout)
        # From now on requests are checked.
        request = urllib.request.Request(f"{self.endpoint}/moto-api/reset-auth", data=b"0", method="POST",
                                         headers={"Content-Type": "text/plain"})
        urllib.request.urlopen(request).close()
        self.env = self.env_of(self.endpoint, AWS_ACCESS_KEY_ID=user["AccessKeyId"],
                               AWS_SECRET_ACCESS_KEY=user["SecretAccessKey"])

    # One test, since the server takes seconds to start.
    def test_all(self):
        with self.subTest("copy"):
            told = self.json_of("copy", "s3://models/one/m.safetensors", "file:copied", env=self.env)
            self.assertTrue((self.dir / "copied").read_bytes() == self.model)
            self.assertEqual(told["route"]["lanes"][0]["hops"][0]["backend"], "s3")
            self.succeed("copy", "s3://models/one/m.safetensors", "gpu:3", "--verify", env=self.env)
            self.succeed("copy", f"s3://models/one/m.safetensors@{MIB + 3}+9MiB", "file:part", env=self.env)
            self.assertTrue((self.dir / "part").read_bytes() == self.model[MIB + 3 : 10 * MIB + 3])
            self.succeed("copy", "s3://models/empty.bin", "file:nothing", env=self.env)
            self.assertEqual((self.dir / "nothing").read_bytes(), b"")
        with self.subTest("load"):
            for path in ["one/m.safetensors", "one", "one/", "two", "two/model.safetensors.index.json"]:
                told = self.json_of("load", f"s3://models/{path}", "--to", "gpu:0,gpu:1", "--verify", env=self.env)
                self.assertEqual((told["tensors"], told["verified"]), (2, True))
            self.assertIn("the store", self.succeed("load", "s3://models/one", "--to", "host", env=self.env).out)
        with self.subTest("inspect"):
            self.assertEqual(self.json_of("inspect", "s3://models/one", env=self.env)["path"], "s3://models/one")
            self.assertIn("odd name+1.safetensors", self.succeed("inspect", "s3://models/two", env=self.env).out)
            # More names than one answer holds.
            self.assertEqual(self.json_of("inspect", "s3://models/many", env=self.env)["files"][0]["path"],
                             "models/many/zz.safetensors")
        with self.subTest("save"):
            self.succeed("save", "s3://models/two", "saved.safetensors", "--verify", env=self.env)
            self.succeed("save", "here.safetensors", "same.safetensors")
            self.assertTrue((self.dir / "saved.safetensors").read_bytes() == (self.dir / "same.safetensors").read_bytes())
        with self.subTest("save of tensors in objects"):
            self.succeed("save", "all=s3://models/one/m.safetensors", f"part=s3://models/one/m.safetensors@{MIB + 3}+9MiB,dtype=f32",
                         "none=s3://models/empty.bin", "placed.safetensors", "--verify", env=self.env)
            self.assertTrue(test_save.parse((self.dir / "placed.safetensors").read_bytes())[0] == {
                "all": ("U8", [len(self.model)], self.model), "none": ("U8", [0], b""),
                "part": ("F32", [9 * MIB // 4], self.model[MIB + 3 : 10 * MIB + 3])})
        with self.subTest("route"):
            self.assertIn("HTTP ranges", self.succeed("route", "s3://models/one/m.safetensors", "gpu:0", "--size", "1GiB",
                                                      env=self.env).out)
        with self.subTest("a profile"):
            (self.dir / ".aws").mkdir()
            self.write(".aws/credentials", f"[other]\nx = y\n[p]\n aws_access_key_id={self.env['AWS_ACCESS_KEY_ID']}\n"
                       f"aws_secret_access_key = {self.env['AWS_SECRET_ACCESS_KEY']}\n".replace("\n ", "\n").encode())
            self.write(".aws/config", f"[profile p]\nregion = eu-west-1\nendpoint_url = {self.endpoint}/\n".encode())
            bare = {n: v for n, v in self.env.items() if not n.startswith("AWS_")}
            self.succeed("inspect", "s3://models/one", env={**bare, "AWS_PROFILE": "p"})
            self.refused(FAILED, ["no credentials", "AWS_ACCESS_KEY_ID", ".aws/credentials"], "inspect", "s3://models/one",
                         env=bare)
        for code, words, line, env in [
            (USAGE, "there is no bucket none", ["load", "s3://none/x.safetensors"], {}),
            (USAGE, "there is no bucket none", ["inspect", "s3://none"], {}),
            (USAGE, "s3://models/one/none", ["load", "s3://models/one/none"], {}),
            (USAGE, "there is no such file", ["copy", "s3://models/one/none.bin", "host"], {}),
            (USAGE, "is a folder", ["copy", "s3://models/one", "host"], {}),
            (FAILED, "not written", ["copy", "host", "s3://models/one/new", "--size", "1MiB"], {}),
            (FAILED, "in a store", ["inspect", "s3://models/one", "--manifest", "sums.json"], {}),
            (USAGE, "no *.safetensors", ["inspect", "s3://models/three/a/b"], {}),
            (FAILED, ["refused", "SignatureDoesNotMatch"], ["inspect", "s3://models/one"], {"AWS_SECRET_ACCESS_KEY": "bad"}),
            (FAILED, ["refused", "InvalidAccessKeyId"], ["inspect", "s3://models/one"], {"AWS_ACCESS_KEY_ID": "bad"}),
            (USAGE, "bucket", ["copy", "s3://", "host"], {}),
            (USAGE, "there is no such file", ["save", "w=s3://models/one/none.bin", "new.safetensors"], {}),
            (USAGE, "is a folder", ["save", "w=s3://models/one", "new.safetensors"], {}),
            (USAGE, "there is no bucket none", ["save", "w=s3://none/x", "new.safetensors"], {}),
            (FAILED, f"has {len(self.model)} bytes", ["save", "w=s3://models/one/m.safetensors@19MiB+2MiB", "new.safetensors"], {}),
        ]:
            with self.subTest(line=line, env=env):
                self.refused(code, words, *line, env={**self.env, **env})


class Misbehaving(http.server.BaseHTTPRequestHandler):
    """Serves one object; `fault(number of the request, first, last)` may answer instead, and says whether it did."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", headers=(), length=None):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)

    def refuse(self, status, code, headers=(), more=""):
        self.answer(status, f"<Error><Code>{code}</Code><Message>m</Message>{more}</Error>".encode(), headers)

    def do_GET(self):
        server = self.server
        with server.lock:
            server.count += 1
            number = server.count
        first, last = (int(part) for part in re.match(r"bytes=(\d+)-(\d+)", self.headers["Range"]).groups())
        if server.fault and server.fault(self, number, first, last):
            return
        if self.headers.get("If-Match", server.etag) != server.etag:
            return self.refuse(412, "PreconditionFailed")
        last = min(last, len(server.content) - 1)
        self.answer(206, server.content[first : last + 1],
                    [("ETag", server.etag), ("Content-Range", f"bytes {first}-{last}/{len(server.content)}")])


class Faults(S3Test):
    def setUp(self):
        super().setUp()
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Misbehaving)
        self.server.handle_error = lambda *_: None  # a client that has heard enough
        self.server.daemon_threads = True
        self.server.lock, self.server.count, self.server.fault = threading.Lock(), 0, None
        self.server.content = self.content
        self.server.etag = f'"{hashlib.md5(self.content).hexdigest()}"'
        thread = threading.Thread(target=self.server.serve_forever)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(self.server.shutdown)
        self.addCleanup(self.server.server_close)
        self.env = self.env_of(f"http://127.0.0.1:{self.server.server_port}", AWS_SESSION_TOKEN="a token")

    def copy(self):
        return self.json_of("copy", "s3://b/object", "file:copied", env=self.env)

    def test_what_passes_is_asked_again(self):
        def busy(handler, number, first, last):
            if number % 3 == 0:
                handler.refuse(503, "SlowDown")
            return number % 3 == 0

        # Half of what was promised, and then the end of the connection.
        def broken(handler, number, first, last):
            if last - first < 1000 or number % 2:
                return False
            body = self.content[first : first + (last - first) // 2]
            handler.answer(206, body, [("ETag", handler.server.etag),
                                       ("Content-Range", f"bytes {first}-{last}/{len(self.content)}")], last - first + 1)
            handler.close_connection = True
            return True

        for fault in (busy, broken):
            with self.subTest(fault.__name__):
                self.server.count, self.server.fault = 0, fault
                told = self.copy()
                self.assertTrue((self.dir / "copied").read_bytes() == self.content)
                self.assertTrue(any("made again" in note for note in told["notes"]), told["notes"])

    def test_what_does_not_pass(self):
        def always(status, code, headers=(), more=""):
            return lambda handler, *_: handler.refuse(status, code, headers, more) or True

        def later(answer):
            return lambda handler, number, *rest: number > 3 and answer(handler, number, *rest)

        def replaced(handler, number, first, last):
            handler.server.etag = '"another"'
            return False

        def no_ranges(handler, *_):
            handler.answer(200, b"all of it", [("ETag", handler.server.etag)])
            return True

        # A proxy that answers with another part than it was asked for, and one that does not say which.
        def other_part(handler, number, first, last):
            handler.answer(206, self.content[: last - first + 1], [("ETag", handler.server.etag), (
                "Content-Range", f"bytes 0-{last - first}/{len(self.content)}")])
            return True

        def other_size(handler, number, first, last):
            handler.answer(206, self.content[first : last + 1], [("ETag", handler.server.etag), (
                "Content-Range", f"bytes {first}-{last}/{len(self.content) + 1}")])
            return True

        def untold_part(handler, number, first, last):
            handler.answer(206, self.content[first : last + 1], [("ETag", handler.server.etag)])
            return True

        def weak(handler, number, first, last):
            if "If-Match" in handler.headers:
                handler.refuse(412, "PreconditionFailed")
            else:
                handler.answer(206, self.content[first : last + 1], [("ETag", 'W/"weak"'), (
                    "Content-Range", f"bytes {first}-{last}/{len(self.content)}")])
            return True

        self.write("copied", b"earlier")
        for name, code, words, fault in [
            ("weak", FAILED, ['W/"weak"', "cannot be asked for"], weak),
            ("another part", FAILED, ["bytes from ", "were asked for", "is bytes 0-"], later(other_part)),
            ("another size", FAILED, [f"of {len(self.content)}, were", f"/{len(self.content) + 1}"], later(other_size)),
            ("no part", FAILED, "does not say which it holds", later(untold_part)),
            ("busy", FAILED, ["HTTP 503, SlowDown", "asked 5 times"], always(503, "SlowDown")),
            ("region", USAGE, ["region ap-south-1", "AWS_REGION=ap-south-1"],
             always(301, "PermanentRedirect", [("x-amz-bucket-region", "ap-south-1")])),
            ("malformed", USAGE, "AWS_REGION=us-west-2",
             always(400, "AuthorizationHeaderMalformed", more="<Region>us-west-2</Region>")),
            ("forbidden", FAILED, ["refused", "s3:GetObject"], always(403, "AccessDenied")),
            ("expired", FAILED, "refused", always(400, "ExpiredToken")),
            ("gone", USAGE, "no bucket b", always(404, "NoSuchBucket")),
            ("replaced", FAILED, "changed while it was read", later(replaced)),
            ("removed", USAGE, "there is no s3://b/object", later(always(404, "NoSuchKey"))),
            ("no ranges", FAILED, "answers no ranges", no_ranges),
        ]:
            with self.subTest(name):
                self.server.count, self.server.fault = 0, fault
                self.refused(code, words, "copy", "s3://b/object", "file:copied", "--quiet", env=self.env)
                self.assertTrue((self.dir / "copied").read_bytes() == b"earlier")

    def bench(self, *options, **env):
        """What the case `object` found."""
        outcome = self.run_command("bench", "--case", "object", "--json", "--samples", "2", *options, env={**self.env, **env})
        case, = json.loads(outcome.out)["cases"]
        self.assertEqual(outcome.code, FAILED if case["failed"] else DONE, outcome.err)
        return case

    def test_the_bench_measures_curl_beside(self):
        one = ["--object", "s3://b/object"]
        for words, options, env in [("--object s3://BUCKET/KEY", [], {}), ("AWS_ACCESS_KEY_ID is not set", one, {"AWS_ACCESS_KEY_ID": ""}),
                                    ("curl is not on PATH", one, {"PATH": "/nowhere"})]:
            self.assertIn(words, self.bench(*options, **env)["skipped"])
        self.refused(USAGE, "'file:x' is no object", "bench", "--case", "object", "--object", "file:x", env=self.env)
        if shutil.which("curl") is None:
            self.skipTest("curl is not on PATH")
        for options, size in [([], len(self.content)), (["--size", "9MiB"], 9 * MIB), (["--size", "1GiB"], len(self.content))]:
            with self.subTest(options):
                host, gpu = self.bench(*one, *options)["figures"]
                for figure, to in [(host, "host"), (gpu, "gpu:0")]:
                    self.assertEqual((figure["to"], figure["bytes"], figure["verified"]), (to, size, True))
                    self.assertEqual([peer["name"] for peer in figure["peers"]], ["curl, 32 connections", "curl, 1 connection"])
                    for measured in (figure, *figure["peers"]):
                        self.assertEqual(len(measured["samples"]), 2)
                        self.assertGreater(min(measured["samples"]), 0)
        self.assertEqual([figure["to"] for figure in self.bench(*one, "--to", "gpu:0")["figures"]], ["gpu:0"])
        self.server.fault = lambda handler, *_: handler.headers.get("User-Agent", "").startswith("curl") and (
            handler.refuse(403, "AccessDenied") or True)
        failed = self.bench(*one)["failed"]
        for word in ["curl ended with 22", "0 of 20971520 bytes"]:
            self.assertIn(word, failed)

    def test_a_server_that_stalls_keeps_the_deadline(self):
        let_go = threading.Event()
        self.addCleanup(let_go.set)

        def stall(handler, number, first, last):
            if number > 3:
                let_go.wait()
            return False

        self.server.fault = stall
        outcome = self.run_command("copy", "s3://b/object", "file:copied", "--deadline", "500ms", "--quiet", env=self.env)
        self.assertEqual(outcome.code, FAILED)
        self.assertIn("the deadline of 500 ms passed", outcome.err.splitlines()[-1])
        self.assertFalse((self.dir / "copied").exists())

    def test_nobody_listens(self):
        self.refused(USAGE, ["was not read", "s3://b/object"], "copy", "s3://b/object", "host",
                     env=self.env_of(f"http://127.0.0.1:{free_port()}"))


if __name__ == "__main__":
    unittest.main()
