"""Addresses of nodes in etcd: a real one, none, and one of the test's own that misbehaves."""

import base64
import http.server
import json
import os
import shutil
import socket
import subprocess
import threading
import time
import unittest
import urllib.request

import harness

ETCD = os.environ.get("SIDESTEP_ETCD") or shutil.which("etcd")


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def encoded(text):
    return base64.b64encode(text.encode()).decode()


class EtcdTest(harness.NodeTest):
    def setUp(self):
        super().setUp()
        self.serve("--allow", self.allow)
        self.listening = self.env["SIDESTEP_NODES"].removeprefix("n=")
        self.write("in/x", b"what the node has")

    def env_of(self, nodes):
        return {**self.env, "SIDESTEP_NODES": str(nodes), "no_proxy": "127.0.0.1"}

    def copy_from(self, node, nodes):
        return self.run_command("copy", f"{node}/file:{self.dir}/in/x", "file:got", env=self.env_of(nodes))

    def reach(self, node, nodes):
        outcome = self.copy_from(node, nodes)
        self.assertEqual(outcome.code, 0, outcome.err)
        self.assertEqual((self.dir / "got").read_bytes(), b"what the node has")

    def fail_to_reach(self, node, nodes, *words, within=8):
        began = time.monotonic()
        outcome = self.copy_from(node, nodes)
        self.assertLess(time.monotonic() - began, within)
        self.assertNotEqual(outcome.code, 0)
        self.assertEqual(outcome.err.count("\n"), 1, outcome.err)
        for word in words:
            self.assertIn(word, outcome.err)


@unittest.skipUnless(ETCD, "there is no etcd: `tools/setup.sh tests` installs it")
class RealEtcd(EtcdTest):
    def setUp(self):
        super().setUp()
        self.at = f"127.0.0.1:{free_port()}"
        process = subprocess.Popen(
            [ETCD, "--data-dir", self.dir / "etcd", "--listen-client-urls", f"http://{self.at}", "--advertise-client-urls",
             f"http://{self.at}", "--listen-peer-urls", f"http://127.0.0.1:{free_port()}", "--unsafe-no-fsync"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(self.end, process)
        for _ in range(300):
            try:
                self.put("/sidestep/nodes/n", self.listening)
                break
            except OSError:
                time.sleep(0.1)
        self.nodes = f"etcd://{self.at}/sidestep/nodes"

    def put(self, key, value):
        body = json.dumps({"key": encoded(key), "value": encoded(value)}).encode()
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
            f"http://{self.at}/v3/kv/put", data=body, timeout=5).close()

    def test_found(self):
        self.reach("n", self.nodes)
        self.assertIn("machine n", self.succeed("--nodes", self.nodes, "topo", "n", env=self.env).out)
        # Of several ways one is out of order; a line end is no part of it.
        self.put("/sidestep/nodes/two", f"127.0.0.1:{free_port()},{self.listening}\n")
        self.reach("two", self.nodes + "/")

    def test_not_found(self):
        self.fail_to_reach("m", self.nodes, "it has no such key", "etcdctl put /sidestep/nodes/m HOST:PORT", self.at)
        self.fail_to_reach("n", f"etcd://{self.at}/other", "it has no such key", "/other/n")

    def test_values_that_are_no_addresses(self):
        for value, words in (("", "is not an address"), ("n=10.0.0.1", "is not an address"), ("\x1b[2J", "is not an address"),
                             ("10.0.0.1:0", "port 0"), ("10.0.0.1,10.0.0.1", "twice"), ("x" * 70000, "not etcd's gateway")):
            with self.subTest(value=value[:20]):
                self.put("/sidestep/nodes/bad", value)
                self.fail_to_reach("bad", self.nodes, words, "/sidestep/nodes/bad")

    def test_one_member_of_two_is_down(self):
        self.reach("n", f"etcd://127.0.0.1:{free_port()},{self.at}/sidestep/nodes")

    def test_a_file_of_nodes_with_etcd_for_the_rest(self):
        path = self.write("nodes", f"here={self.listening}\netcd://{self.at}/sidestep/nodes\n".encode())
        self.reach("here", path)
        self.reach("n", path)


class NoEtcd(EtcdTest):
    def test_nobody_listens_there(self):
        at = f"127.0.0.1:{free_port()}"
        self.fail_to_reach("n", f"etcd://{at}/n", f"etcd at {at}", "connect")
        path = self.write("nodes", f"here={self.listening}\netcd://{at}/n\n".encode())
        self.reach("here", path)
        self.fail_to_reach("n", path, f"etcd at {at}")
        self.succeed("topo", env=self.env_of(f"etcd://{at}/n"))

    def test_it_does_not_answer(self):
        with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
            names = [f"127.0.0.1:{each.getsockname()[1]}" for each in (one, other)]
            self.fail_to_reach("n", f"etcd://{','.join(names)}/n", "timed out", *names)

    def test_bad_input(self):
        for nodes in ("etcd://", "etcd://127.0.0.1:2379", "etcd://a b/n", "etcd://a:0/n"):
            with self.subTest(nodes=nodes):
                self.fail_to_reach("n", nodes, "does not say where etcd is")
        path = self.write("nodes", b"etcd://a/n\netcd://b/n\n")
        self.fail_to_reach("n", path, "nodes:2: etcd is named twice")


class LyingEtcd(EtcdTest):
    def test_answers_of_others(self):
        test = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                self.rfile.read(int(self.headers["Content-Length"]))
                status, body = test.answer
                self.send_response(status)
                self.send_header("Content-Length", len(body))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        nodes = f"etcd://127.0.0.1:{server.server_port}/n"
        for self.answer, words in (((200, b"<html>"), "not etcd's gateway"), ((200, b"{}"), "not etcd's gateway"),
                                   ((200, b'{"header":{},"kvs":[{"value":"%"}]}'), "not etcd's gateway"),
                                   ((200, b"x" * (20 << 20)), "etcd at"), ((404, b""), "status 404"),
                                   ((401, b"{}"), "status 401"), ((302, b""), "status 302")):
            with self.subTest(answer=self.answer[1][:40]):
                self.fail_to_reach("n", nodes, words)
        value = encoded(self.listening).encode()
        self.answer = (200, b'{"header":{},"kvs":[{"value":"' + value + b'"}],"count":"1"}')
        self.reach("n", nodes)


if __name__ == "__main__":
    unittest.main()
